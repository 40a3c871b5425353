// What the tests of clients share: an example of this package as the server, and the clients, installed into `target/clients`.

import { execFileSync, spawn } from "node:child_process";
import { copyFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const PATIENCE = 30_000;
const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.env.CARGO_TARGET_DIR ?? "target");

/** A `require` that knows the clients. */
export function install() {
  const folder = join(target, "clients");
  mkdirSync(folder, { recursive: true });
  for (const name of ["package.json", "package-lock.json"]) copyFileSync(join(here, name), join(folder, name));
  execFileSync("npm", ["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: folder, stdio: "inherit" });
  return createRequire(join(folder, "here.js"));
}

/** Starts the server: `told` is what it said of itself, `replies` what users saw, `user` types a line. */
export async function serve(example) {
  const child = spawn(join(target, "debug", "examples", example), [], { stdio: ["pipe", "pipe", "inherit"] });
  process.on("exit", () => child.kill());
  const [told, replies] = [{}, []];
  createInterface({ input: child.stdout }).on("line", (line) => {
    const at = line.indexOf(" ");
    const [word, rest] = [line.slice(0, at), line.slice(at + 1)];
    if (word === "bot:") replies.push(rest);
    else told[word] = rest;
  });
  const until = async (what, condition) => {
    const end = Date.now() + PATIENCE;
    while (!condition()) {
      if (Date.now() > end) throw new Error(`waited for ${what} in vain; the bot said ${JSON.stringify(replies)}`);
      await new Promise((go) => setTimeout(go, 5));
    }
  };
  await until("the server", () => told.url && told.token);
  return { told, replies, until, user: (line) => child.stdin.write(`${line}\n`), stop: () => child.kill() };
}

/** The error with which a call is refused. */
export async function refusal(call) {
  const error = await call().then(() => undefined, (error) => error);
  if (!error) throw new Error(`it was not refused: ${call}`);
  return error;
}
