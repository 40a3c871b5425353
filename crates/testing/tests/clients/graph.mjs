// Clients that others wrote talk to `FakeGraph`: what the server says is what they expect of Meta.
//
// node crates/testing/tests/clients/graph.mjs, from the root, after `cargo build -p botmesh-testing --examples`.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";

import { install, refusal, serve } from "./server.mjs";

const required = install();
const { GraphApiError, WhatsAppClient } = required("@kapso/whatsapp-cloud-api");
const { MessengerClient } = required("messaging-api-messenger");
const { told, replies, until, user, stop } = await serve("graph_server");

const phoneNumberId = told.phone_number_id;
const [ana, ben] = ["15551234567", "24000000000001"];
const whatsapp = (accessToken) => new WhatsAppClient({ accessToken, baseUrl: told.url });
const messenger = (accessToken) => new MessengerClient({ accessToken, origin: told.url });

const { messages, media } = whatsapp(told.token);
const to = { phoneNumberId, to: ana };
const sent = await messages.sendText({ ...to, body: "hello" });
assert.equal(sent.contacts[0].waId, ana);
const buttons = [{ id: "tea", title: "Tea" }, { id: "coffee", title: "Coffee" }];
await messages.sendInteractiveButtons({ ...to, bodyText: "Tea or coffee?", buttons });
const sections = [{ title: "Warm", rows: [{ id: "soup", title: "Soup", description: "of today" }] }];
await messages.sendInteractiveList({ ...to, bodyText: "What to eat?", buttonText: "Menu", sections });
const bytes = new Uint8Array([1, 2, 3]);
const file = new Blob([bytes], { type: "image/png" });
const { id } = await media.upload({ phoneNumberId, type: "image/png", file, fileName: "soup.png" });
const about = await media.get({ mediaId: id });
assert.deepEqual([about.id, about.mimeType, about.messagingProduct], [id, "image/png", "whatsapp"]);
assert.equal(about.sha256, createHash("sha256").update(bytes).digest("hex"));
assert.deepEqual(new Uint8Array(await media.download({ mediaId: id, auth: "always" })), bytes);
assert.equal((await media.download({ mediaId: id, auth: "never", as: "response" })).status, 401);
await messages.sendImage({ ...to, image: { id, caption: "by id" } });
await messages.sendImage({ ...to, image: { link: "https://example.com/soup.png", caption: "by link" } });
await messages.sendReaction({ ...to, reaction: { messageId: sent.messages[0].id, emoji: "👍" } });
assert.equal((await messages.markRead({ phoneNumberId, messageId: "wamid.IN1" })).success, true);

const page = messenger(told.page_token);
const hello = await page.sendText(ben, "hi");
assert.equal(hello.recipientId, ben);
assert.ok(hello.messageId);
const quickReplies = [{ contentType: "text", title: "Tea", payload: "tea" }];
await page.sendMessage(ben, { text: "Tea?", quickReplies });
await page.sendButtonTemplate(ben, "More?", [{ type: "postback", title: "Yes", payload: "yes" }]);
for (const action of ["mark_seen", "typing_on", "typing_off"]) {
  assert.equal((await page.sendSenderAction(ben, action)).recipientId, ben);
}

user("/block");
await until("what users saw", () => told.shown);
const expected = ["hello", "Tea or coffee?", "What to eat?", "by id", "by link", "", "hi", "Tea?", "More?"];
assert.deepEqual(replies, expected);
assert.equal(told.shown, "9 and 4 other calls");

async function whatsappRefuses(code, category, call) {
  const error = await refusal(call);
  assert.ok(error instanceof GraphApiError, error);
  assert.deepEqual([error.code, error.category, error.type], [code, category, "OAuthException"]);
}
const text = { ...to, body: "hello" };
await whatsappRefuses(131026, "parameter", () => messages.sendText(text));
await whatsappRefuses(190, "authorization", () => whatsapp("wrong").messages.sendText(text));
await whatsappRefuses(100, "parameter", () => messages.sendText({ ...text, body: "x".repeat(4097) }));
await whatsappRefuses(100, "parameter", () => messages.sendText({ ...text, phoneNumberId: "17" }));

async function messengerRefuses(status, code, call) {
  const error = await refusal(call);
  assert.deepEqual([error.name, error.status], ["AxiosError", status]);
  assert.ok(error.message.startsWith(`Messenger API - ${code} OAuthException `), error.message);
}
await messengerRefuses(400, 551, () => page.sendText(ben, "hello"));
await messengerRefuses(401, 190, () => messenger("wrong").sendText(ben, "hello"));
await messengerRefuses(400, 100, () => page.sendText(ben, "x".repeat(2001)));
stop();
console.log(`WhatsApp and Messenger: ${replies.length} messages, all as expected of Meta`);
