// Random values that fit published types. The types are installed from their registry into `target/described`.

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const folder = resolve(process.env.CARGO_TARGET_DIR ?? "target", "described");
mkdirSync(folder, { recursive: true });
for (const name of ["package.json", "package-lock.json"]) copyFileSync(join(here, name), join(folder, name));
execFileSync("npm", ["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: folder, stdio: "inherit" });
const ts = createRequire(join(folder, "here.js"))("typescript");

// Not more than this is made, in milliseconds: the types may be too much for a slow machine.
const PATIENCE = 60_000;
const DEEP = 9;

const LETTERS = [..."aZ09 /@:_-\\\"\n\u00e9\u05d0\u0e01\u200d\ufffd\u{1f600}\u{1f468}\u{1f3fd}", "e\u0301", "\u{1f1ea}\u{1f1f8}"];
// What the types know as numbers alone, and what has a fraction.
const FRACTIONS = /latitude|longitude|accuracy|scale|_shift|rotation|percentage|luminance|opacity/;
const TIMES = /date|time|period|watermark/;

const is = (type, flag) => (type.flags & flag) !== 0;
const simple = (type) => !is(type, ts.TypeFlags.Object | ts.TypeFlags.Intersection);

// The values of the types that a file of an installed package declares. The same seed makes the same values.
export class Described {
  #types;
  #source;
  #state;
  #properties = new Map();
  #possible = new Map();

  constructor(file, seed) {
    const path = join(folder, "node_modules", file);
    const program = ts.createProgram([path], { strict: true, skipLibCheck: true, module: ts.ModuleKind.NodeNext });
    this.#types = program.getTypeChecker();
    this.#source = program.getSourceFile(path);
    this.#state = Number(seed) >>> 0;
  }

  // A type that the file declares.
  type(name) {
    const exported = this.#types.getExportsOfModule(this.#types.getSymbolAtLocation(this.#source));
    const found = exported.find((symbol) => symbol.name === name);
    if (!found) throw new Error(`the description has no type ${name}: it was not understood`);
    const symbol = is(found, ts.SymbolFlags.Alias) ? this.#types.getAliasedSymbol(found) : found;
    return this.#types.getDeclaredTypeOfSymbol(symbol);
  }

  // mulberry32
  random() {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }
  below(limit) {
    return Math.floor(this.random() * limit);
  }
  pick(list) {
    return list[this.below(list.length)];
  }

  // An id is never empty.
  #text(name) {
    if (FRACTIONS.test(name)) return String(this.random() * 180 - 90);
    if (/timestamp/.test(name)) return String(this.#number(name));
    const length = this.pick([/(^|_|m)id$/.test(name) ? 2 : 0, 1, 3, 12, 60]);
    return Array.from({ length }, () => this.pick(LETTERS)).join("");
  }

  #number(name) {
    if (FRACTIONS.test(name)) return this.random() * 180 - 90;
    if (TIMES.test(name)) return this.pick([0, 1_700_000_000 + this.below(1e8), 2 ** 31 + this.below(1e6)]);
    const below = 2 ** 31;
    const large = [-1_000_000_000_000 - this.below(below), 2 ** 52 - this.below(1000)];
    return this.pick([0, 1, this.below(1000), this.below(below), -this.below(below), ...large]);
  }

  // The fields of an object that can be there.
  fields(type) {
    if (!this.#properties.has(type)) {
      const known = this.#types.getPropertiesOfType(type).map((symbol) => {
        const value = this.#types.getTypeOfSymbolAtLocation(symbol, this.#source);
        return { name: symbol.name, value, optional: (symbol.flags & ts.SymbolFlags.Optional) !== 0 };
      });
      this.#properties.set(type, known.filter(({ value }) => this.members(value).length > 0));
    }
    return this.#properties.get(type);
  }

  // What it may be, without what excludes itself, such as a channel that is a private chat.
  members(type) {
    if (!this.#possible.has(type)) {
      const all = type.isUnion() ? type.types : [type];
      const can = (member) => !["undefined", "never"].includes(this.#types.typeToString(member));
      this.#possible.set(type, all.filter(can));
    }
    return this.#possible.get(type);
  }

  value(type, name, depth = 0) {
    const all = this.members(type);
    const flat = depth > DEEP ? all.filter(simple) : [];
    const chosen = this.pick(flat.length > 0 ? flat : all);
    if (chosen.isStringLiteral() || chosen.isNumberLiteral()) return chosen.value;
    if (is(chosen, ts.TypeFlags.BooleanLiteral)) return chosen.intrinsicName === "true";
    if (is(chosen, ts.TypeFlags.TemplateLiteral)) return this.#template(chosen, name);
    if (is(chosen, ts.TypeFlags.StringLike)) return this.#text(name);
    if (is(chosen, ts.TypeFlags.NumberLike)) return this.#number(name);
    if (is(chosen, ts.TypeFlags.Null)) return null;
    if (this.#types.isArrayType(chosen) || this.#types.isTupleType(chosen)) {
      const [element] = this.#types.getTypeArguments(chosen);
      const length = depth > DEEP ? 0 : this.pick([0, 1, 1, 2, 4]);
      return Array.from({ length }, () => this.value(element, name, depth + 1));
    }
    if (!is(chosen, ts.TypeFlags.Object | ts.TypeFlags.Intersection)) {
      throw new Error(`${name}: ${this.#types.typeToString(chosen)}`);
    }
    return this.#object(chosen, depth + 1);
  }

  #template(type, name) {
    const parts = type.types.map((part) => (is(part, ts.TypeFlags.NumberLike) ? String(this.#number(name)) : this.#text("id")));
    return type.texts.map((text, at) => text + (parts[at] ?? "")).join("");
  }

  #object(type, depth) {
    const share = depth > DEEP ? 0 : this.pick([0, 0.05, 0.2, depth > 3 ? 0.1 : 1]);
    const found = {};
    for (const { name, value: of, optional } of this.fields(type)) {
      if (!optional || this.random() < share) found[name] = this.value(of, name, depth);
    }
    // The fields of an object that may have any name.
    const any = this.#types.getIndexTypeOfType(type, ts.IndexKind.String);
    for (let more = any ? this.below(3) : 0; more > 0; more--) found[this.#text("id")] = this.value(any, "value", depth);
    return found;
  }
}

// Makes `count` lines, in turn of each kind, and at least one of each.
export function lines(count, kinds, make) {
  const end = Date.now() + PATIENCE;
  const made = [];
  while (made.length < Number(count) && Date.now() < end) made.push(JSON.stringify(make(kinds[made.length % kinds.length])));
  if (made.length < kinds.length) throw new Error("not one of each kind in time");
  return made;
}

export const anySeed = () => String(Date.now() % 2 ** 32);
