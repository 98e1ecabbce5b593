import { type FormEvent, useState } from "react";
import { get, type Timeline } from "./api";
import { named, number } from "./format";
import { Answer, Badge, Table } from "./parts";
import { to, useAsked } from "./use";

interface Where {
  partition: number; offset: number; planned_from: number | null; planned_until: number | null;
  places: { source: number; topic: string; txid: number; revision: number; state: string; from_offset: number; until_offset: number; lost_why: string | null; sinks: { sink: string; shown: string[]; unknown: string | null }[] }[];
}
interface Origins { sink: string; made: { txid: number; revision: number; topic: string; partition: number | null; offset: number | null }[]; more: boolean; merged: number }

const WHY: Record<string, string> = {
  not_committed: "nobody sees rows of this transaction",
  combined: "a row stands for many records",
  merged: "merged into what is kept for each key",
  replaced: "no row: the transform gave none, or a later record replaced it",
  expired: "older than the sink keeps rows",
};

function useAnswer<T>(): [T | null, Error | null, (path: string, asked: URLSearchParams) => void] {
  const [value, setValue] = useState<T | null>(null);
  const [error, setError] = useState<Error | null>(null);
  return [value, error, (path, asked) => {
    setError(null);
    setValue(null);
    get<T>(`${path}?${asked}`).then(setValue, setError);
  }];
}

export function PlacesPage({ name }: { name: string }) {
  const at = `pipelines/${encodeURIComponent(name)}`;
  const line = useAsked<Timeline>(at, { most: 1 });
  const [where, whereError, askWhere] = useAnswer<Where>();
  const [origins, originsError, askOrigins] = useAnswer<Origins>();
  const [partition, setPartition] = useState("0"), [offset, setOffset] = useState("");
  const [sink, setSink] = useState(""), [key, setKey] = useState("");
  const sinks = line.value?.status.sinks ?? [];

  function find(event: FormEvent) {
    event.preventDefault();
    askWhere(`${at}/where`, new URLSearchParams({ partition, offset }));
  }
  function trace(event: FormEvent) {
    event.preventDefault();
    const asked = new URLSearchParams({ sink: sink || sinks[0] || "" });
    for (const one of key.split(/\s*,\s*/).filter(Boolean)) asked.append("key", one);
    askOrigins(`${at}/origin`, asked);
  }
  return (
    <>
      <h1><a href={to(name)}>{name}</a>, records and rows</h1>
      <Answer error={line.error} waits={!line.value} />
      <h2>Where is this record?</h2>
      <form className="row" onSubmit={find}>
        <label>Partition <input required inputMode="numeric" pattern="\d+" value={partition} onChange={(e) => setPartition(e.target.value)} /></label>
        <label>Offset <input required inputMode="numeric" pattern="\d+" value={offset} onChange={(e) => setOffset(e.target.value)} /></label>
        <button>Find it</button>
      </form>
      <Answer error={whereError} waits={false} />
      {where && !where.places.length && (
        <p role="status">No transaction has offset {number(where.offset)} of partition {where.partition}{where.planned_until === null ? "; nothing of it is planned" : `; it is planned from ${number(where.planned_from)} to ${number(where.planned_until)}`}.</p>
      )}
      {where?.places.map((place) => (
        <section key={place.source} role="status">
          <p>Transaction <a href={to(name, place.txid)}>{named(place.txid, place.revision)}</a> <Badge kind={place.state}>{place.state}</Badge> has it, in the range {number(place.from_offset)} to {number(place.until_offset)} of {place.topic}.</p>
          {place.lost_why && <p className="note">A person took it out of the plan: {place.lost_why}</p>}
          <Table label="Its rows" head={["Sink", "Rows"]}>
            {place.sinks.map((of) => <tr key={of.sink}><th scope="row">{of.sink}</th><td>{of.unknown ? WHY[of.unknown] ?? of.unknown : of.shown.map((row, n) => <pre key={n}>{row}</pre>)}</td></tr>)}
          </Table>
        </section>
      ))}
      <h2>Where does this row come from?</h2>
      <form className="row" onSubmit={trace}>
        <label>Sink <select value={sink} onChange={(e) => setSink(e.target.value)}>{sinks.map((of) => <option key={of}>{of}</option>)}</select></label>
        <label>Columns <input required placeholder="column=value, column=value" pattern="[^=]+=.*" value={key} onChange={(e) => setKey(e.target.value)} /></label>
        <button>Trace it</button>
      </form>
      <Answer error={originsError} waits={false} />
      {origins && (
        <div role="status">
          <Table label="Made by" head={["Transaction", "Record"]} empty="No row that readers see has these values.">
            {origins.made.map((made, n) => <tr key={n}><th scope="row"><a href={to(name, made.txid)}>{named(made.txid, made.revision)}</a></th><td>{made.offset === null ? "many records" : `${made.topic}-${made.partition} @ ${number(made.offset)}`}</td></tr>)}
          </Table>
          {origins.more && <p className="quiet">There are more.</p>}
          {origins.merged > 0 && <p className="quiet">Up to transaction {number(origins.merged)} deltas are merged: it stands for itself and for those before it.</p>}
        </div>
      )}
    </>
  );
}
