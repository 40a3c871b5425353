// A client that others wrote talks to `FakeTelegram`: what the server says is what they expect of Telegram.
//
// node crates/testing/tests/clients/telegram.mjs, from the root, after `cargo build -p botmesh-testing --examples`.
// The client is installed from its registry into `target/clients`.

import { execFileSync, spawn } from "node:child_process";
import { createRequire } from "node:module";
import { mkdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const CLIENT = "grammy@1.46.0";
const PATIENCE = 30_000;

const target = resolve(process.env.CARGO_TARGET_DIR ?? "target");
const clients = join(target, "clients");
mkdirSync(clients, { recursive: true });
execFileSync("npm", ["install", "--silent", "--no-audit", "--no-fund", "--prefix", clients, CLIENT], { stdio: "inherit" });
const { Bot, GrammyError, InlineKeyboard } = createRequire(join(clients, "here.js"))("grammy");

const server = spawn(join(target, "debug", "examples", "telegram_server"), [], { stdio: ["pipe", "pipe", "inherit"] });
const told = {};
const replies = [];
createInterface({ input: server.stdout }).on("line", (line) => {
  const at = line.indexOf(" ");
  const [word, rest] = [line.slice(0, at), line.slice(at + 1)];
  if (word === "bot:") replies.push(rest);
  else told[word] = rest;
});

async function until(what, condition) {
  const end = Date.now() + PATIENCE;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`waited for ${what} in vain; the bot said ${JSON.stringify(replies)}`);
    await new Promise((go) => setTimeout(go, 5));
  }
}

async function refused(code, call) {
  const error = await call().then(() => new Error("it was not refused"), (error) => error);
  if (!(error instanceof GrammyError) || error.error_code !== code) throw error;
}

const user = (line) => server.stdin.write(`${line}\n`);
await until("the server", () => told.url && told.token);
const bot = new Bot(told.token, { client: { apiRoot: told.url } });
const failures = [];
bot.catch(({ error }) => failures.push(error));
bot.command("start", (c) => c.reply("hello", { reply_markup: new InlineKeyboard().text("Yes", "y") }));
bot.callbackQuery("y", async (c) => {
  await c.answerCallbackQuery();
  await c.editMessageText("pressed");
});
bot.on("message:text", (c) =>
  c.reply(`you said ${c.message.text}`, { reply_parameters: { message_id: c.message.message_id } }),
);
const running = bot.start({ allowed_updates: ["message", "callback_query"] });
for (const [line, reply] of [["/start", "hello"], ["/press Yes", "pressed"], ["hi", "you said hi"]]) {
  user(line);
  await until(reply, () => replies.at(-1) === reply);
}
const ana = 5_025_045_066;
await refused(400, () => bot.api.sendMessage(17, "nobody"));
await refused(400, () => bot.api.sendMessage(ana, " "));
await refused(400, () => bot.api.sendMessage(ana, "x".repeat(4097)));
await refused(400, () => bot.api.sendMessage(ana, "?", { reply_markup: new InlineKeyboard().text("Yes", "x".repeat(65)) }));
await refused(400, () => bot.api.answerCallbackQuery("unknown"));
await refused(401, () => new Bot("1:wrong", { client: { apiRoot: told.url } }).api.getMe());
await bot.stop();
await running;
server.kill();
if (failures.length > 0) throw failures[0];
console.log(`${CLIENT}: ${replies.length} replies, all as expected of Telegram`);
