// A client that others wrote talks to `FakeTelegram`: what the server says is what they expect of Telegram.
//
// node crates/testing/tests/clients/telegram.mjs, from the root, after `cargo build -p botmesh-testing --examples`.

import { install, refusal, serve } from "./server.mjs";

const { Bot, GrammyError, InlineKeyboard } = install()("grammy");
const { told, replies, until, user, stop } = await serve("telegram_server");

async function refused(code, call) {
  const error = await refusal(call);
  if (!(error instanceof GrammyError) || error.error_code !== code) throw error;
}

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
stop();
if (failures.length > 0) throw failures[0];
console.log(`grammY: ${replies.length} replies, all as expected of Telegram`);
