// Fleet: every tree by its state.
import { computed, signal } from "@preact/signals";
import { html } from "./parts.js";

const order = signal([]);
export const busy = computed(() => order.value);
export const rowsNow = () => order.value;
export const acts = () => [];
export const begin = () => {};
export const NewTree = () => null;
export const Fleet = () => html`<main class="empty" data-testid="fleet"><div><h1>Fleet</h1><p>This server does not list its trees yet.</p></div></main>`;
