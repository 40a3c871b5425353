// Random posts of Meta that fit published descriptions of its webhooks, one on each line of a file: `{"product": …, "body": …}`.
// WhatsApp's are those of `whatsapp-api-js`, Messenger's and Instagram's those of `@warriorteam/messenger-sdk`. Meta describes what
// is called, but not what it posts.
//
// node crates/testing/tests/described/graph.mjs FILE [COUNT [SEED]], from the root. Gives up after a minute.

import { writeFileSync } from "node:fs";

import { Described, anySeed, lines } from "./random.mjs";

const [out, count = "1500", seed = anySeed()] = process.argv.slice(2);
const whatsapp = new Described("whatsapp-api-js/lib/types.d.ts", seed);
const page = new Described("@warriorteam/messenger-sdk/dist/index.d.ts", Number(seed) + 1);
const post = whatsapp.type("PostData");
const item = page.type("MessengerWebhookEvent");

// Which of the items of a page it is, says the SDK and not Meta.
function pageItem() {
  const { type, ...rest } = page.value(item, "item");
  return rest;
}

const several = (make) => Array.from({ length: 1 + page.below(4) }, make);
const pageBody = (object) => ({
  object,
  entry: several(() => ({ id: "page", time: 1_795_950_000_123, [page.pick(["messaging", "messaging", "standby"])]: several(pageItem) })),
});

const kinds = {
  whatsapp: () => whatsapp.value(post, "post"),
  messenger: () => pageBody("page"),
  instagram: () => pageBody("instagram"),
};
const made = lines(count, Object.keys(kinds), (product) => ({ product, body: kinds[product]() }));
writeFileSync(out, made.join("\n"));
console.log(`${made.length} posts of ${Object.keys(kinds).join(", ")}, seed ${seed}`);
