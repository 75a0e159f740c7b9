// The page as a whole: the header, the two views, and the connection to the server.

import * as api from "./api.js";
import { byId, make, setText } from "./dom.js";
import { Explore } from "./explore.js";
import { clock } from "./format.js";
import { Live } from "./live.js";

const LIVE_MS = 500;
const QUIET_MS = 2000;
// How long a server that said it was ready is believed.
const READY_MS = 5000;
const VIEWS = ["live", "explore"];

let live = null;
let explore = null;
let known = null;
let lostSince = null;
let readyUntil = 0;

const wanted = () => (VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "live");

function showView() {
  const view = wanted();
  for (const name of VIEWS) {
    byId(name).hidden = name !== view;
    if (name === view) byId(`nav-${name}`).setAttribute("aria-current", "page");
    else byId(`nav-${name}`).removeAttribute("aria-current");
  }
  if (!known) return;
  if (view === "explore" && !explore) {
    explore = new Explore(known);
    explore.start();
  }
  wake();
}

function showHeader(meta) {
  const name = meta.task ? `${meta.method} on ${meta.task}` : `${meta.method} policy, task not known`;
  document.title = `${name}: gemrl policy server`;
  setText(byId("policy-name"), name);
  setText(byId("fact-sizes"), `${meta.observation_size} → ${meta.action_size}`);
  setText(byId("fact-backend"), meta.backend);
  setText(byId("fact-version"), meta.version);
  const digest = byId("digest");
  setText(digest, meta.digest.slice(0, 12));
  digest.title = meta.digest;
  digest.setAttribute("aria-label", `Copy the digest ${meta.digest}`);
  digest.onclick = () => copyDigest(digest, meta.digest);
}

async function copyDigest(button, digest) {
  const area = make("textarea", { value: digest, className: "unseen", readOnly: true });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  button.focus();
  setText(button, copied ? "copied" : digest);
  setTimeout(() => setText(button, digest.slice(0, 12)), 2500);
}

function showState(state, text) {
  byId("status").dataset.state = state;
  setText(byId("status"), text);
}

async function found() {
  if (lostSince !== null) explore?.ask();
  lostSince = null;
  byId("lost").hidden = true;
  if (Date.now() < readyUntil) return;
  const ready = await api.ready();
  readyUntil = ready ? Date.now() + READY_MS : 0;
  showState(ready ? "ready" : "waiting", ready ? "ready" : "starting or stopping");
}

function lost(error) {
  const signedOut = error.status === 401;
  const what = error instanceof api.LostError ? "No answer from the server" : "Only errors from the server";
  const why = error instanceof api.LostError ? "" : ` (${error.message})`;
  lostSince ??= Date.now() / 1000;
  readyUntil = 0;
  const banner = byId("lost");
  const text = signedOut
    ? "The server does not know this sign-in any more. Load the page again to sign in."
    : `${what} since ${clock(lostSince)}${why}. What is shown is old. Trying again.`;
  setText(banner, text);
  banner.hidden = false;
  showState("lost", signedOut ? "signed out" : "no connection");
}

/** Learn about the server, at first and after it was away: it may be another one. */
async function meet() {
  const meta = await api.metadata();
  if (known && JSON.stringify(meta) !== JSON.stringify(known)) {
    location.reload();
    return;
  }
  if (known) return;
  known = meta;
  showHeader(meta);
  live = new Live(meta);
  showView();
}

let wake = () => {};

/** Wait, but no longer than until somebody wakes it. */
const rest = (milliseconds) => new Promise((resolve) => {
  const timer = setTimeout(resolve, milliseconds);
  wake = () => {
    clearTimeout(timer);
    resolve();
  };
});

async function run() {
  for (;;) {
    try {
      if (!known || lostSince !== null) await meet();
      await live.poll();
      await found();
    } catch (error) {
      if (!(error instanceof api.LostError || error instanceof api.ServerError)) throw error;
      lost(error);
    }
    const busy = wanted() === "live" && lostSince === null && !document.hidden;
    await rest(busy ? LIVE_MS : QUIET_MS);
  }
}

window.addEventListener("hashchange", showView);
document.addEventListener("visibilitychange", () => wake());
showView();
run();
