// The live view of the engine: asks for it again and again, while it can be seen.

import { engineView } from "./api.js";
import { TAB } from "./answering.js";
import { byId, el, say } from "./dom.js";

// Milliseconds between two looks, while something runs and while nothing does.
const BUSY_MS = 400;
const IDLE_MS = 1500;
/** Points of the curve; at most a minute of them. */
const PACE_POINTS = 120;

const PHASES = {
  tokenize: "reading",
  queue: "waiting",
  prefill: "prompt",
  decode: "answer",
};
const UNITS = ["B", "kB", "MB", "GB", "TB"];
const OUTCOMES = {
  completed: "completed",
  client_gone: "client left",
  stalled: "client stalled",
  deadline: "deadline",
  cancelled: "cancelled",
  rejected: "refused",
  failed: "failed",
  shutdown: "shutdown",
};

export class EngineView {
  #timer = null;
  #looking = null;
  #paces = [];
  #sequences = new Rows(byId("sequences"), sequenceRow, updateSequence);
  #ended = new Rows(byId("ended"), endedRow, updateEnded);

  start() {
    document.addEventListener("visibilitychange", () => this.look());
    this.look();
  }

  /** Look now, and return what is there; null if it cannot be seen. */
  look() {
    this.#looking ??= this.#look().finally(() => (this.#looking = null));
    return this.#looking;
  }

  async #look() {
    clearTimeout(this.#timer);
    if (document.hidden) return null;
    let view = null;
    try {
      view = await engineView();
      this.#show(view);
    } catch (error) {
      this.#fail(error);
    }
    const wait = view?.sequences.length ? BUSY_MS : IDLE_MS;
    this.#timer = setTimeout(() => this.look(), wait);
    return view;
  }

  #show(view) {
    state(view.state, "");
    say(byId("speed"), view.tokens_per_second.toFixed(1));
    const { totals } = view;
    const wasted = totals.wasted_prompt_tokens + totals.wasted_generated_tokens;
    say(byId("wasted"), count(wasted));
    say(byId("running"), count(view.running));
    say(byId("places"), view.max_running ? `of ${view.max_running}` : "");
    say(byId("waiting"), count(view.waiting));
    say(byId("generated"), count(totals.generated_tokens));
    const share = totals.prompt_tokens ? totals.cached_prompt_tokens / totals.prompt_tokens : 0;
    say(byId("cached"), `${Math.round(share * 100)}%`);
    const { running_bytes: held, cached_bytes: kept, budget_bytes: room } = view.kv;
    byId("memory").max = room || 1;
    byId("memory").value = held + kept;
    say(byId("memory-words"), `${bytes(held)} in use, ${bytes(kept)} of prefixes, of ${bytes(room)}`);
    say(byId("running-badge"), view.running ? String(view.running) : "");
    this.#draw(view.tokens_per_second);
    this.#sequences.show(view.sequences, (one) => `${one.request_id}#${one.choice}`);
    this.#ended.show(view.ended, distinct(view.ended));
    byId("idle").hidden = view.sequences.length > 0;
    byId("none-ended").hidden = view.ended.length > 0;
  }

  #fail(error) {
    if (error.status === 401) state("locked", "Its view needs a key: see Settings.");
    else state("offline", error.message);
    this.#sequences.show([], String);
    byId("idle").hidden = true;
    say(byId("running-badge"), "");
  }

  #draw(pace) {
    this.#paces = [...this.#paces, pace].slice(-PACE_POINTS);
    const highest = Math.max(...this.#paces, 1);
    const from = PACE_POINTS - this.#paces.length;
    const points = this.#paces.map((one, i) => `${from + i},${(31 - (one / highest) * 29).toFixed(1)}`);
    const svg = byId("pace");
    svg.querySelector("polyline").setAttribute("points", points.join(" "));
    const floor = [`${from},32`, ...points, `${PACE_POINTS - 1},32`];
    svg.querySelector("polygon").setAttribute("points", floor.join(" "));
  }
}

/** Keys for ended requests, newest first: clients may use an id again. */
function distinct(ended) {
  const keys = new Map();
  const seen = new Map();
  for (const one of ended.toReversed()) {
    const times = (seen.get(one.request_id) ?? 0) + 1;
    seen.set(one.request_id, times);
    keys.set(one, `${one.request_id}#${times}`);
  }
  return (one) => keys.get(one);
}

function state(word, note) {
  const chip = byId("engine-state");
  say(chip, word);
  chip.className = `chip ${word}`;
  say(byId("engine-note"), note);
  byId("engine-note").hidden = !note;
}

/** A list whose rows stay the same nodes for as long as they are there. */
class Rows {
  #list;
  #make;
  #update;
  #rows = new Map();

  constructor(list, make, update) {
    this.#list = list;
    this.#make = make;
    this.#update = update;
  }

  show(items, keyOf) {
    const before = this.#rows;
    this.#rows = new Map();
    for (const item of items) {
      const row = before.get(keyOf(item)) ?? this.#make();
      this.#update(row, item);
      this.#rows.set(keyOf(item), row);
    }
    const nodes = [...this.#rows.values()].map((row) => row.node);
    if (nodes.some((node, i) => this.#list.children[i] !== node) ||
        nodes.length !== this.#list.children.length) {
      this.#list.replaceChildren(...nodes);
    }
  }
}

function sequenceRow() {
  const [phase, whose, pace] = ["chip", "whose", "pace"].map((className) => el("span", { className }));
  const progress = el("progress", { ariaLabel: "Progress" });
  const detail = el("div", { className: "detail" });
  const head = el("div", { className: "row-head" }, phase, whose, pace);
  return { node: el("li", {}, head, progress, detail), phase, whose, pace, progress, detail };
}

function updateSequence(row, one) {
  const mine = one.request_id.startsWith(TAB);
  row.node.className = `row ${one.ending ? "ending" : one.phase}${mine ? " mine" : ""}`;
  say(row.phase, one.ending ? "letting go" : PHASES[one.phase]);
  say(row.whose, mine ? "this tab" : one.request_id);
  say(row.pace, one.tokens_per_second ? `${one.tokens_per_second.toFixed(1)}/s` : "");
  const prefilling = one.phase === "prefill";
  row.progress.max = (prefilling ? one.prompt_tokens : one.max_tokens) || 1;
  row.progress.value = prefilling ? one.prompt_tokens_done : one.generated_tokens;
  say(row.detail, words(one));
}

function words(one) {
  const prompt = one.prompt_tokens ?? 0;
  const done = one.prompt_tokens_done < prompt ? `${count(one.prompt_tokens_done)} of ` : "";
  const source = one.prefix_source === "disk" ? "from disk" : "cached";
  const cached = one.cached_prompt_tokens ? `, ${count(one.cached_prompt_tokens)} ${source}` : "";
  const parts = [`prompt ${done}${count(prompt)}${cached}`];
  if (one.generated_tokens) parts.push(`answer ${count(one.generated_tokens)}`);
  parts.push(`${one.age_s.toFixed(0)}\u00a0s`);
  if (one.key) parts.push(one.key);
  return parts.join(" · ");
}

function endedRow() {
  const [outcome, whose] = ["chip", "whose"].map((className) => el("span", { className }));
  const detail = el("div", { className: "detail" });
  return { node: el("li", {}, el("div", { className: "row-head" }, outcome, whose), detail), outcome, whose, detail };
}

function updateEnded(row, one) {
  const mine = one.request_id.startsWith(TAB);
  row.node.className = `row ${one.outcome}${mine ? " mine" : ""}`;
  say(row.outcome, OUTCOMES[one.outcome]);
  say(row.whose, mine ? "this tab" : one.request_id);
  const parts = [`${count(one.generated_tokens)} tokens`];
  if (one.release_s !== null) parts.push(released(one));
  say(row.detail, parts.join(" · "));
}

/** How an ended request was let go of, in a few words. */
export function released(one) {
  const ms = one.release_s * 1000;
  const time = ms < 10 ? ms.toFixed(1) : ms.toFixed(0);
  return `let go in ${time} ms, ${count(one.wasted_tokens)} wasted`;
}

function bytes(number) {
  const unit = Math.min(Math.floor(Math.log10(Math.max(number, 1)) / 3), 4);
  const shown = number / 1000 ** unit;
  return `${shown < 10 && unit ? shown.toFixed(1) : shown.toFixed(0)}\u00a0${UNITS[unit]}`;
}

const count = (number) => number.toLocaleString("en");
