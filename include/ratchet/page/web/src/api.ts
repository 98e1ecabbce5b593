// What the server answers, as include/ratchet/operate/snapshot has it.

export type State = "OPEN" | "PREPARED" | "ABORTED" | "COMMITTED" | "VOIDED";

export interface Standing {
  txid: number; revision: number; state: State; epoch: number; dag_id: string; run_id: string;
  voted: number; slices: number; failures: number; opened_at: string; prepared_at: string | null;
  deadline: string | null; halted_at: string | null; reason: string | null; waits: string; before: number | null;
  why: string; releases: string | null;
}
export interface Pause { txid: number; who: string; reason: string; at: string }
export interface Reached {
  destination: string; sink: string; step: number; last: number; reached_at: string; waits_since: string | null;
  detached_at: string | null; said: string;
}
export interface Line {
  pipeline: string; at: string; topic: string; topics: string[]; left_topics: string[]; head: number; last_txid: number; in_flight: number; compacted: number;
  committed_at: string | null;
  rate: { seconds: number; transactions: number; records: number };
  halt: number | null; unattended: string | null; replays: number; releases: number; asked: string | null; unfinished: Standing[];
  sinks: string[]; is_private: boolean; may_move: boolean; halted_why: string | null; said: string[];
  pause: Pause | null; paused_why: string | null; destinations: Reached[];
}
export interface Unknown { pipelines: string[]; code: string; message: string }
export interface Lines { pipelines: Line[]; unknown: Unknown[] }
export interface Lag {
  pipeline: string; records: number; waiting: number; seconds: number | null; deleted_at: string | null; lost: number;
  is_told: boolean; is_made_again: boolean;
}
export interface Lags { lags: Lag[]; unknown: Unknown[] }
export interface Result { revision: number; releases: number[]; records: number; rows: Record<string, number> }
export interface Phase { name: string; since: string; until: string | null }
export interface Bar {
  txid: number; revision: number; state: State; epoch: number; dag_id: string; run_id: string; opened_at: string;
  first_try_at: string | null; prepared_at: string | null; committed_at: string | null; offsets: number;
  records: number | null; rows: Record<string, number>; waits: string | null; before: number | null; failures: number;
  halted_at: string | null; reason: string | null; phases: Phase[];
  what: string; releases: string | null; result: Result | null; is_replaced: boolean;
}
export interface Timeline {
  status: Line; bars: Bar[]; earlier: number | null;
  took: { phase: string; transactions: number; median: number; p95: number }[];
  sinks: { schema: string; name: string; kind: string; shows: string; expired_until: number; expired_rows: number }[];
  compacted: number; merged: number; pruned: number;
}
export interface Range { topic: string; source: number; partition: number; from_offset: number; until_offset: number }
export interface Whole {
  pipeline: string; txid: number; head: number; last_txid: number; result: Result | null; pause: Pause | null; applied: number | null; standing: Standing | null;
  spark_pages: Record<string, string>; may_move: boolean; halted_why: string | null;
  revisions: {
    revision: number; state: State; epoch: number; claim: number; claim_ended: boolean; dag_id: string; run_id: string;
    code: string; records: number | null; rows: Record<string, number>; failures: number; halted_at: string | null;
    deadline: string | null; txn_time: string; opened_at: string; prepared_at: string | null;
    committed_at: string | null; reason: string | null; what: string; releases: string | null;
  }[];
  ranges: Range[];
  losses: { partition: number; from_offset: number; until_offset: number; who: string; reason: string; at: string }[];
  slices: {
    epoch: number; slice: number; ranges: Range[]; try_number: number; tried_at: string | null;
    voted_at: string | null; records: number | null; dead_letters: number | null;
    sinks: { sink: string; rows: number; checksum: string; writers: number }[]; seconds: Record<string, number>;
    absent: string[]; cut: number; application_id: string | null;
  }[];
  gates: { epoch: number; gate: string; yes: boolean; why: string | null; numbers: Record<string, unknown> }[];
  claims: { number: number; revision: number; epoch: number; run: string; at: string; ended_at: string | null; why: string | null }[];
  replay: { who: string; reason: string; at: string; given_up: string | null; releases: string | null } | null;
  history: { at: string; who: string; move: string; epoch: number; revision: number; detail: Record<string, unknown> }[];
}
export interface Letter {
  txid: number; topic: string; partition: number; offset: number; timestamp: string | null; reason: string;
  key_text: string | null; key_base64: string | null; value_text: string | null; value_base64: string | null;
  value_size: number | null; is_json: boolean; headers: { key: string; text: string | null; base64: string | null }[];
}
export interface Letters { letters: Letter[]; next: string | null; withheld: boolean }
export interface Counts {
  counted: number; is_all: boolean; may_move: boolean;
  reasons: { reason: string; letters: number; first_txid: number; last_txid: number }[];
  transactions: { txid: number; letters: number }[]; going_on: number[];
  asked: { who: string; reason: string; error: string; transactions: number; first_txid: number; last_txid: number; at: string }[];
}
export interface Moved { said: string[]; confirm: string | null }

export class Failed extends Error {
  constructor(readonly status: number, readonly code: string | null, message: string) {
    super(message);
  }
}

const ROOT = new URL("./api/", document.baseURI.split("#")[0]).href;

export function url(path: string, asked: Record<string, string | number | null | undefined> = {}): string {
  const found = new URL(path, ROOT);
  for (const [name, value] of Object.entries(asked)) if (value != null && value !== "") found.searchParams.set(name, String(value));
  return found.href;
}

async function answered<T>(response: Response): Promise<T> {
  const said = await response.json().catch(() => null);
  if (response.ok) return said as T;
  throw new Failed(response.status, said?.code ?? null, said?.message ?? said?.detail ?? response.statusText);
}

export async function get<T>(path: string, asked: Record<string, string | number | null | undefined> = {}, signal?: AbortSignal): Promise<T> {
  return answered(await fetch(url(path, asked), { signal, headers: { Accept: "application/json" } }));
}

export async function move(pipeline: string, name: string, said: Record<string, unknown>): Promise<Moved> {
  return answered(
    await fetch(url(`pipelines/${encodeURIComponent(pipeline)}/moves/${name}`), {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Ratchet": "page" },
      body: JSON.stringify(said),
    }),
  );
}
