// The page: one conversation is shown, any number may be being answered.

import { Answering } from "./answering.js";
import { servedModel } from "./api.js";
import { announce, byId, el } from "./dom.js";
import { EngineView, released } from "./engine.js";
import { Messages } from "./messages.js";
import { SettingsDialog } from "./settings.js";
import * as store from "./store.js";

const RETRY_MS = 1500;
/** How often the engine is looked at for a stopped request, at most, until it has let go. */
const RELEASE_LOOKS = 20;

const engine = new EngineView();
const settings = new SettingsDialog(settingsChanged);
const messages = new Messages(askAgain);
const live = new Map(); // what is being answered, by conversation
let model = null;
let conversation = store.all()[0] ?? store.newConversation();

// --- what is shown ---

function show(stored) {
  // One that is being answered has more in it than what was stored.
  const chosen = live.get(stored.id)?.conversation ?? stored;
  conversation = chosen;
  byId("title").value = chosen.title;
  messages.show(chosen.messages);
  if (live.has(chosen.id)) messages.update(true);
  showControls();
  listConversations();
}

function showControls() {
  const answering = live.has(conversation.id);
  byId("stop").hidden = !answering;
  byId("send").hidden = answering;
  byId("send").disabled = model === null || !byId("question").value.trim();
  document.title = `${store.titleOf(conversation)} · ds4trio`;
}

function listConversations() {
  const list = byId("conversations");
  const items = store.all().map((one) => {
    const button = el(
      "button",
      { type: "button", className: live.has(one.id) ? "live" : "", ariaCurrent: String(one.id === conversation.id) },
      el("span", {}, store.titleOf(one)),
    );
    button.addEventListener("click", () => {
      show(store.load(one.id) ?? store.newConversation());
      view("chat");
      byId("question").focus();
    });
    return el("li", {}, button);
  });
  list.replaceChildren(...items);
}

function view(name) {
  document.body.dataset.view = name;
  for (const button of document.querySelectorAll(".views button")) {
    button.ariaPressed = String(button.dataset.view === name);
  }
}

// --- asking ---

function ask(text) {
  const content = text.trim();
  if (!content || model === null || live.has(conversation.id)) return;
  const question = { role: "user", content };
  conversation.messages.push(question);
  conversation.title ||= content.replace(/\s+/g, " ").slice(0, 60);
  byId("title").value = conversation.title;
  messages.append(question);
  answer();
}

function answer() {
  const asked = conversation;
  const isShown = () => conversation.id === asked.id;
  let drawing = false;
  let heard = false;
  const answering = new Answering(asked, model.name, (done) => {
    if (done) {
      live.delete(asked.id);
      finished(answering, isShown);
      return;
    }
    if (!heard) {
      heard = true;
      engine.look(); // now it is there to be seen
    }
    if (!drawing) {
      // Once a frame: tokens may come faster than anybody sees.
      drawing = true;
      requestAnimationFrame(() => {
        drawing = false;
        if (isShown() && live.has(asked.id)) messages.update(true);
      });
    }
  });
  live.set(asked.id, answering);
  messages.append(answering.message);
  showControls();
  listConversations();
  announce("Answering.");
  answering.run();
}

function finished(answering, isShown) {
  const { message } = answering;
  if (isShown()) {
    messages.update(false);
    if (document.activeElement === byId("stop") || document.activeElement === document.body) {
      byId("question").focus();
    }
    showControls();
  }
  listConversations();
  announce(message.stopped ? "Stopped." : message.problem ? "The answer failed." : "Answered.");
  if (message.stopped) tellRelease(answering, isShown);
  else engine.look();
}

/** Say under a stopped answer how soon the engine let go of it. */
async function tellRelease(answering, isShown) {
  for (let looks = 0; looks < RELEASE_LOOKS; looks += 1) {
    const seen = await engine.look();
    if (seen === null) return;
    const ended = seen.ended.find((one) => one.request_id === answering.requestId);
    if (ended) {
      answering.message.release = ended.release_s === null ? "" : released(ended);
      answering.message.stats = { tokens: ended.generated_tokens };
      store.save(answering.conversation);
      if (isShown() && !live.has(conversation.id)) messages.update(false);
      return;
    }
  }
}

function askAgain(index) {
  if (live.has(conversation.id)) return;
  conversation.messages.splice(index);
  messages.show(conversation.messages);
  answer();
}

function stop() {
  live.get(conversation.id)?.stop();
}

// --- conversations ---

function startNew() {
  show(store.newConversation());
  view("chat");
  byId("question").focus();
}

function deleteShown() {
  stop();
  conversation.deleted = true;
  store.remove(conversation.id);
  announce("Deleted.");
  show(store.all()[0] ?? store.newConversation());
}

function exportShown(kind) {
  const name = store.titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);
  if (kind === "json") {
    store.download(`${name}.json`, "application/json", JSON.stringify(conversation, null, 2));
  } else {
    store.download(`${name}.md`, "text/markdown", store.asMarkdown(conversation));
  }
  byId("export").hidePopover();
}

function settingsChanged(changed, isNewKey) {
  store.save(changed);
  engine.look();
  if (model === null && isNewKey) connect();
}

// --- the server ---

async function connect() {
  const label = byId("model");
  try {
    model = await servedModel();
    label.textContent = model.name;
    label.title = `${model.name}, ${model.contextTokens.toLocaleString("en")} tokens of context`;
  } catch (error) {
    if (error.status === 401) {
      label.textContent = "needs a key";
      settings.open(conversation, { needsKey: true });
    } else {
      label.textContent = error.status ? "loading…" : "not reachable";
      setTimeout(connect, RETRY_MS);
    }
  }
  showControls();
}

// --- hands ---

const question = byId("question");

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
  showControls();
}

function submit() {
  if (live.has(conversation.id) || model === null) return;
  ask(question.value);
  question.value = "";
  fitQuestion();
}

question.addEventListener("input", fitQuestion);
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
byId("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("settings").open) stop();
});
byId("welcome").addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-question]");
  if (chosen) ask(chosen.textContent);
});
byId("title").addEventListener("change", (event) => {
  conversation.title = event.target.value.trim();
  store.save(conversation);
  listConversations();
});
byId("new-chat").addEventListener("click", startNew);
byId("delete-chat").addEventListener("click", deleteShown);
byId("open-settings").addEventListener("click", () => settings.open(conversation));
byId("export").addEventListener("click", (event) => {
  const chosen = event.target.closest("[data-export]");
  if (chosen) exportShown(chosen.dataset.export);
});
for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => view(button.dataset.view));
}
window.addEventListener("storage", listConversations); // another tab has written
window.addEventListener("pagehide", () => {
  for (const { conversation: left } of live.values()) store.save(left);
});

show(conversation);
engine.start();
connect();
question.focus();
