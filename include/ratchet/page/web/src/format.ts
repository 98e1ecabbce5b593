export const number = (of: number | null | undefined): string => (of == null ? "–" : of.toLocaleString("en-US"));

/** `1 record`, `2,000 records`; `many` where an s does not do. */
export const counted = (of: number, one: string, many = `${one}s`): string => `${number(of)} ${of === 1 ? one : many}`;

export function seconds(of: number | null | undefined): string {
  if (of == null) return "–";
  if (of < 10) return `${of.toFixed(1)} s`;
  if (of < 120) return `${Math.round(of)} s`;
  if (of < 7200) return `${Math.round(of / 60)} min`;
  return of < 172_800 ? `${Math.round(of / 3600)} h` : `${Math.round(of / 86_400)} d`;
}

export function moment(of: string | null | undefined): string {
  return of ? of.replace("T", " ").replace(/(\.\d+)?(Z|\+00:00)$/, "") + " UTC" : "–";
}

export function between(start: string | null, end: string | null): number | null {
  return start && end ? Math.max(0, (Date.parse(end) - Date.parse(start)) / 1000) : null;
}

export const ago = (of: string | null, now: string): string => (of ? `${seconds(between(of, now))} ago` : "never");

export const named = (txid: number, revision: number): string => (revision ? `${txid}, revision ${revision}` : `${txid}`);

/** `2`, or `2 to 5`. */
export const span = (first: number | string, last: number | string): string => (first === last ? `${first}` : `${first} to ${last}`);

/** `transaction 2`, or `transactions 2 to 5`. */
export const spans = (first: number, last: number): string => `transaction${first === last ? "" : "s"} ${span(first, last)}`;

/** The same within a sentence, as the command says it. */
export const called = (txid: number, revision: number): string => (revision ? `revision ${revision} of transaction ${txid}` : `transaction ${txid}`);

export const runLink = (dag: string, run: string): string =>
  new URL(`../dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`, document.baseURI.split("#")[0]).href;
