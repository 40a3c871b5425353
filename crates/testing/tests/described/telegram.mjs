// Random updates that fit the published description of the Bot API, one on each line of a file. The description is made from
// Telegram's own page.
//
// node crates/testing/tests/described/telegram.mjs FILE [COUNT [SEED]], from the root. Gives up after a minute.

import { writeFileSync } from "node:fs";

import { Described, anySeed, lines } from "./random.mjs";

const [out, count = "5000", seed = anySeed()] = process.argv.slice(2);
const described = new Described("@grammyjs/types/update.d.ts", seed);

// What the description says in words alone: one of these is there.
const ONE_OF = { poll_answer: ["user", "voter_chat"] };
function update(kind, type) {
  const found = described.value(type, kind);
  const names = ONE_OF[kind] ?? [];
  if (names.length > 0 && !names.some((name) => name in found)) {
    const name = described.pick(names);
    const field = described.fields(described.members(type)[0]).find((field) => field.name === name);
    found[name] = described.value(field.value, name, 1);
  }
  return found;
}

const kinds = described.fields(described.type("Update")).filter(({ optional }) => optional);
if (kinds.length < 25) throw new Error(`the description has ${kinds.length} kinds of updates: it was not understood`);
const made = lines(count, kinds, ({ name, value }) => ({ update_id: 1 + described.below(2 ** 31), [name]: update(name, value) }));
writeFileSync(out, made.join("\n"));
console.log(`${made.length} updates of ${kinds.length} kinds, seed ${seed}: ${kinds.map(({ name }) => name).join(" ")}`);
