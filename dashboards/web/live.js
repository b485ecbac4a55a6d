// The live overview: one stream for the page, to whose news its parts listen, and what is known of the connection.

import { address, archived, get } from "./api.js";

const SILENCE_MS = 25_000; // the server says something every ten seconds
const AGAIN_MS = 3_000;
const overviews = new Set();
const states = new Set();
let source = null;
let watchdog = null;
let again = null;
let latest = null;
let state = "connecting";

// Calls with each new overview, and at once with the newest there is. While nobody looks at the page, it waits.
export function onOverview(listener) {
  overviews.add(listener);
  if (latest) listener(latest);
}

// Calls with "connecting", "live", "waiting" (for the first step), "stale", "disconnected" or "archived", at once and at each change.
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
      console.error(error); // one part of the page does not take the others along
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

// A line that is cut without a word says nothing any more.
function watch() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => {
    setState("disconnected");
    open();
  }, SILENCE_MS);
}

// There is one stream at a time. A browser takes up by itself what breaks off, but not what was refused.
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

// What an archive holds was the last word; nothing follows it.
async function openArchive() {
  latest = await get("overview");
  setState("archived");
  tell();
}

document.addEventListener("visibilitychange", tell);
if (archived) openArchive().catch(() => setState("disconnected"));
else open();
