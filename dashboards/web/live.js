// The live overview: one event stream for all parts of the page, and the state of its connection.

import { address, archived, get } from "./api.js";

const SILENCE_MS = 25_000; // the server sends an event at least every ten seconds
const AGAIN_MS = 3_000;
const overviews = new Set();
const states = new Set();
let source = null;
let watchdog = null;
let again = null;
let latest = null;
let state = "connecting";

// Calls `listener` with the newest overview and each new one; not while the page is hidden.
export function onOverview(listener) {
  overviews.add(listener);
  if (latest) listener(latest);
}

// Calls `listener` now and at each change, with "connecting", "live", "waiting" (for a first step),
// "stale", "disconnected" or "archived".
export function onState(listener) {
  states.add(listener);
  listener(state, latest);
}

function setState(now) {
  state = now;
  for (const listener of states) listener(state, latest);
}

function tell() {
  if (document.hidden || !latest) return;
  for (const listener of overviews) {
    try {
      listener(latest);
    } catch (error) {
      console.error(error); // an error in one part of the page must not stop the others
    }
  }
}

function hear(event) {
  latest = JSON.parse(event.data);
  watch();
  if (latest.stale && latest.progress.updated_at !== null) setState("stale");
  else setState(latest.totals.steps ? "live" : "waiting");
  tell();
}

// Reconnects after a silence: a connection may be lost without an error.
function watch() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => {
    setState("disconnected");
    open();
  }, SILENCE_MS);
}

// Opens the page's only stream. Browsers reopen a broken stream, but not a refused one.
function open() {
  clearTimeout(again);
  source?.close();
  const opened = new EventSource(address("events"));
  source = opened;
  opened.addEventListener("overview", hear);
  opened.addEventListener("error", () => {
    if (opened !== source) return;
    setState("disconnected");
    if (opened.readyState === EventSource.CLOSED) again = setTimeout(open, AGAIN_MS * (1 + Math.random()));
  });
  watch();
}

// Loads an archive's overview, which never changes.
async function openArchive() {
  latest = await get("overview");
  setState("archived");
  tell();
}

document.addEventListener("visibilitychange", tell);
if (archived) openArchive().catch(() => setState("disconnected"));
else open();
