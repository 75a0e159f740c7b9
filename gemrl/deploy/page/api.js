// The server's interface. Paths are relative, so that the page also works below a proxy's prefix.

const TIMEOUT_MS = 15000;

/** The server answered with an error: its type, its message and, where it gave one, when to retry. */
export class ServerError extends Error {
  constructor(status, type, message, retryAfter) {
    super(message);
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
  }
}

/** The server did not answer. */
export class LostError extends Error {}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) });
  } catch {
    throw new LostError("the server does not answer");
  }
  let body = null;
  try {
    body = await response.json();
  } catch {
    if (response.ok) throw new LostError("the server's answer broke off");
  }
  if (response.ok) return body;
  const { type = "Error", message = `the server answered ${response.status}` } = body?.error ?? {};
  throw new ServerError(response.status, type, message, Number(response.headers.get("retry-after")) || 0);
}

export const metadata = () => ask("v1/metadata");

/** Whether the server decides; it says no while it starts and while it stops. */
export async function ready() {
  try {
    return (await fetch("readyz", { signal: AbortSignal.timeout(TIMEOUT_MS) })).ok;
  } catch {
    throw new LostError("the server does not answer");
  }
}

export const recent = (after) => ask(`v1/recent?after=${after}`);

/** A state of the dataset; without a row number a random one. */
export const state = (row) => ask(row === undefined ? "v1/state" : `v1/state?row=${encodeURIComponent(row)}`);

export const act = (request) => ask("v1/act", {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(request),
});

/** The address of /v1/act, as somebody elsewhere would write it. */
export const actAddress = () => new URL("v1/act", document.baseURI).href;
