// Which call a generation gets, and how the messages of shared calls are read: no fleet is called.
import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import {
  GenerateManyResponseSchema,
  type GenerationEvent,
  TokenRowsSchema,
} from "../gen/baton/v1/inference_pb.js";
import { heardIn } from "../src/wire/rows.ts";
import { ALWAYS, BEYOND_FEW, placeOf, type Sharing, sharingOf } from "../src/wire/sharing.ts";

test("a few are alone, and further ones share the emptiest call", () => {
  for (const [numAlone, loads, place] of [
    [0, [], undefined],
    [7, [64, 1], undefined],
    [8, [], 0],
    [8, [63], 0],
    [8, [64], 1],
    [8, [64, 64], 2],
    [8, [64, 3, 2, 2], 2],
    [50, [0], 0],
  ] as const) {
    assert.equal(placeOf(BEYOND_FEW, numAlone, loads), place, `${numAlone}, ${loads}`);
  }
});

test("a client chooses by its option", () => {
  assert.equal(sharingOf(undefined), BEYOND_FEW);
  assert.deepEqual(
    [[], [255], [256]].map((loads) => placeOf(sharingOf(true), 0, loads)),
    [0, 0, 1],
  );
  assert.equal(sharingOf(true), ALWAYS);
  assert.equal(placeOf(sharingOf(false), 1000, [0]), undefined);
});

test("calls are as few as the limits allow, whatever begins and ends", () => {
  let state = 1;
  const below = (limit: number) => {
    state = (state * 48_271) % 2_147_483_647;
    return state % limit;
  };
  for (let round = 0; round < 300; round += 1) {
    const sharing: Sharing = { numAlone: below(5), most: 1 + below(5) };
    const loads: number[] = [];
    const running: (number | undefined)[] = [];
    for (let step = 0; step < 60; step += 1) {
      if (running.length > 0 && below(3) === 0) {
        const [place] = running.splice(below(running.length), 1);
        if (place !== undefined) loads[place] = (loads[place] as number) - 1;
        continue;
      }
      const numAlone = running.filter((place) => place === undefined).length;
      const place = placeOf(sharing, numAlone, loads);
      assert.equal(place === undefined, numAlone < sharing.numAlone);
      running.push(place);
      if (place === undefined) continue;
      if (place === loads.length) assert.ok(loads.every((load) => load === sharing.most));
      else assert.equal(loads[place], Math.min(...loads));
      loads[place] = (loads[place] ?? 0) + 1;
      assert.ok((loads[place] as number) <= sharing.most);
    }
  }
});

const ROWS = {
  ids: [4n, 9n, 4n],
  choices: [0, 2, 0],
  firstIndexes: [0, 5, 1],
  numTokens: [1, 2, 1],
  textLengths: [3, 0, 4],
  tokenIds: [70, 80, 81, 71],
  // A byte order mark is text, and characters have one to four bytes.
  textUtf8: Buffer.from("\uFEFF😀"),
  numDeltas: [0, 2, 1],
  deltas: ["a", "b", "c"].map((content) => ({ delta: { case: "content" as const, value: content } })),
};

function shown({ event: { case: kind, value } }: GenerationEvent): unknown {
  if (kind !== "tokens") return kind;
  const { choice, firstIndex, tokenIds, text, deltas } = value;
  return [choice, firstIndex, tokenIds, text, deltas.map(({ delta }) => delta.value)];
}

test("events come out of the columns as they went in, each at its place", () => {
  const queued = {
    case: "generation",
    value: { event: { case: "queued", value: { position: 1 } } },
  } as const;
  const message = create(GenerateManyResponseSchema, {
    tokens: ROWS,
    events: [
      { id: 9n, afterRows: 0, event: queued },
      { id: 5n, afterRows: 2, event: { case: "status", value: Buffer.from([1]) } },
      { id: 4n, afterRows: 3, event: queued },
    ],
  });
  const heard = [...heardIn(message)].map((each) => [
    each.id,
    each.status === undefined ? shown(each.event) : "status",
  ]);
  assert.deepEqual(heard, [
    [9n, "queued"],
    [4n, [0, 0, [70], "\uFEFF", []]],
    [9n, [2, 5, [80, 81], "", ["a", "b"]]],
    [5n, "status"],
    [4n, [0, 1, [71], "😀", ["c"]]],
    [4n, "queued"],
  ]);
});

test("columns that do not fit each other are refused", () => {
  const longer: Partial<typeof ROWS>[] = [
    { ids: [...ROWS.ids, 1n] },
    { choices: [...ROWS.choices, 1] },
    { firstIndexes: [...ROWS.firstIndexes, 1] },
    { numTokens: [...ROWS.numTokens, 1] },
    { numTokens: [1, 2, 2] },
    { textLengths: [3, 0, 5] },
    { tokenIds: [...ROWS.tokenIds, 1] },
    { numDeltas: [0, 2, 2] },
    { numDeltas: [0, 2] },
  ];
  for (const changed of longer) {
    const tokens = create(TokenRowsSchema, { ...ROWS, ...changed });
    assert.throws(() => [...heardIn(create(GenerateManyResponseSchema, { tokens }))], RangeError);
  }
  const events = [{ id: 1n, afterRows: 1 }];
  assert.throws(() => [...heardIn(create(GenerateManyResponseSchema, { events }))], /after row 1 of 0/);
});
