// The settings dialog: this chat's system prompt and sampling, and this tab's keys.

import { apiKey, metricsKey } from "./api.js";
import { byId } from "./dom.js";

const SAMPLING = [
  "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed",
];

export class SettingsDialog {
  #dialog = byId("settings");
  #fields = this.#dialog.querySelector("form").elements;
  #changed;
  #conversation = null;

  /** `changed(conversation, isNewKey)` is called when the dialog is closed, however it is. */
  constructor(changed) {
    this.#changed = changed;
    this.#dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault(); // it has told what is wrong, if anything is
      this.#dialog.close();
    });
    this.#dialog.addEventListener("close", () => this.#keep());
  }

  open(conversation, { needsKey = false } = {}) {
    if (this.#dialog.open) return;
    this.#conversation = conversation;
    const fields = this.#fields;
    fields.system.value = conversation.system;
    fields.thinking.value = conversation.thinking;
    for (const name of SAMPLING) fields[name].value = conversation.sampling[name] ?? "";
    fields.key.value = apiKey.get();
    fields.metrics_key.value = metricsKey.get();
    byId("key-needed").hidden = !needsKey;
    this.#dialog.showModal();
    if (needsKey) fields.key.focus();
  }

  #keep() {
    const fields = this.#fields;
    this.#conversation.system = fields.system.value.trim();
    this.#conversation.thinking = fields.thinking.value;
    this.#conversation.sampling = {};
    for (const name of SAMPLING) {
      // What is no number, or out of range, is not taken.
      if (fields[name].value && fields[name].validity.valid) {
        this.#conversation.sampling[name] = fields[name].valueAsNumber;
      }
    }
    const key = fields.key.value.trim();
    const isNewKey = key !== apiKey.get();
    apiKey.set(key);
    metricsKey.set(fields.metrics_key.value.trim());
    this.#changed(this.#conversation, isNewKey);
  }
}
