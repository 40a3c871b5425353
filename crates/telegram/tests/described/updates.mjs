// Random updates that fit the published description of the Bot API, one on each line of a file.
//
// node crates/telegram/tests/described/updates.mjs FILE [COUNT [SEED]], from the root. Gives up after a minute.
// The description, which is made from Telegram's own page, is installed from its registry into `target/described`.

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const [out, count = "5000", seed = String(Date.now() % 2 ** 32)] = process.argv.slice(2);
const PATIENCE = 60_000;
const here = dirname(fileURLToPath(import.meta.url));
const folder = resolve(process.env.CARGO_TARGET_DIR ?? "target", "described");
mkdirSync(folder, { recursive: true });
for (const name of ["package.json", "package-lock.json"]) copyFileSync(join(here, name), join(folder, name));
execFileSync("npm", ["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: folder, stdio: "inherit" });
const ts = createRequire(join(folder, "here.js"))("typescript");

const file = join(folder, "node_modules/@grammyjs/types/update.d.ts");
const program = ts.createProgram([file], { strict: true, skipLibCheck: true, module: ts.ModuleKind.NodeNext });
const types = program.getTypeChecker();
const source = program.getSourceFile(file);
const exported = types.getExportsOfModule(types.getSymbolAtLocation(source));
const Update = types.getDeclaredTypeOfSymbol(exported.find((symbol) => symbol.name === "Update"));

// mulberry32
let state = Number(seed) >>> 0;
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), state | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
const below = (limit) => Math.floor(random() * limit);
const pick = (list) => list[below(list.length)];

const LETTERS = [..."aZ09 /@:_-\\\"\n\u00e9\u05d0\u0e01\u200d\ufffd\u{1f600}\u{1f468}\u{1f3fd}", "e\u0301", "\u{1f1ea}\u{1f1f8}"];
// An id is never empty.
const text = (name) => Array.from({ length: pick([/(^|_)id$/.test(name) ? 2 : 0, 1, 3, 12, 60]) }, () => pick(LETTERS)).join("");

// The types know one kind of number; these are the fields in which Telegram has fractions.
const FRACTIONS = /latitude|longitude|accuracy|scale|_shift|rotation|percentage|luminance|opacity/;
function number(name) {
  if (FRACTIONS.test(name)) return random() * 180 - 90;
  if (/date|time|period/.test(name)) return pick([0, 1_700_000_000 + below(1e8), 2 ** 31 + below(1e6)]);
  return pick([0, 1, below(1000), below(2 ** 31), -below(2 ** 31), -1_000_000_000_000 - below(2 ** 31), 2 ** 52 - below(1000)]);
}

const DEEP = 9;
const is = (type, flag) => (type.flags & flag) !== 0;
const simple = (type) => !is(type, ts.TypeFlags.Object | ts.TypeFlags.Intersection);
const properties = new Map();
function fields(type) {
  if (!properties.has(type)) {
    const known = types.getPropertiesOfType(type).map((symbol) => {
      const value = types.getTypeOfSymbolAtLocation(symbol, source);
      return { name: symbol.name, value, optional: (symbol.flags & ts.SymbolFlags.Optional) !== 0 };
    });
    properties.set(type, known.filter(({ value }) => members(value).length > 0));
  }
  return properties.get(type);
}

// Without what excludes itself, such as a channel that is a private chat.
const possible = new Map();
function members(type) {
  if (!possible.has(type)) {
    const all = type.isUnion() ? type.types : [type];
    possible.set(type, all.filter((member) => !["undefined", "never"].includes(types.typeToString(member))));
  }
  return possible.get(type);
}

function value(type, name, depth) {
  const all = members(type);
  const flat = depth > DEEP ? all.filter(simple) : [];
  const chosen = pick(flat.length > 0 ? flat : all);
  if (chosen.isStringLiteral() || chosen.isNumberLiteral()) return chosen.value;
  if (is(chosen, ts.TypeFlags.BooleanLiteral)) return chosen.intrinsicName === "true";
  if (is(chosen, ts.TypeFlags.StringLike)) return text(name);
  if (is(chosen, ts.TypeFlags.NumberLike)) return number(name);
  if (is(chosen, ts.TypeFlags.Null)) return null;
  if (types.isArrayType(chosen) || types.isTupleType(chosen)) {
    const [element] = types.getTypeArguments(chosen);
    const length = depth > DEEP ? 0 : pick([0, 1, 1, 2, 4]);
    return Array.from({ length }, () => value(element, name, depth + 1));
  }
  if (!is(chosen, ts.TypeFlags.Object | ts.TypeFlags.Intersection)) throw new Error(`${name}: ${types.typeToString(chosen)}`);
  return object(chosen, depth + 1);
}

function object(type, depth) {
  const share = depth > DEEP ? 0 : pick([0, 0.05, 0.2, depth > 3 ? 0.1 : 1]);
  const found = {};
  for (const { name, value: of, optional } of fields(type)) {
    if (!optional || random() < share) found[name] = value(of, name, depth);
  }
  return found;
}

// What the description says in words alone: one of these is there.
const ONE_OF = { poll_answer: ["user", "voter_chat"] };
function update(kind, type) {
  const found = value(type, kind, 0);
  const names = ONE_OF[kind] ?? [];
  if (names.length > 0 && !names.some((name) => name in found)) {
    const name = pick(names);
    found[name] = value(fields(members(type)[0]).find((field) => field.name === name).value, name, 1);
  }
  return found;
}

const kinds = fields(Update).filter(({ optional }) => optional);
if (kinds.length < 25) throw new Error(`the description has ${kinds.length} kinds of updates: it was not understood`);
const end = Date.now() + PATIENCE;
const lines = [];
while (lines.length < Number(count) && Date.now() < end) {
  const { name, value: of } = kinds[lines.length % kinds.length];
  lines.push(JSON.stringify({ update_id: 1 + below(2 ** 31), [name]: update(name, of) }));
}
if (lines.length < kinds.length) throw new Error("not one update of each kind in time");
writeFileSync(out, lines.join("\n"));
console.log(`${lines.length} updates of ${kinds.length} kinds, seed ${seed}: ${kinds.map(({ name }) => name).join(" ")}`);
