import { type FormEvent, useState } from "react";
import { get, type Timeline } from "./api";
import { named, number } from "./format";
import { Answer, Badge, Table } from "./parts";
import { to, toRecord, useAsked } from "./use";

interface Where {
  topic: string | null; partition: number; offset: number; planned_from: number | null; planned_until: number | null;
  is_of_several: boolean;
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

/** Which record is looked for; the address has it, so that it can be passed on. */
function Record({ name, topics, asked }: { name: string; topics: string[]; asked: URLSearchParams }) {
  const [turn, setTurn] = useState(0);
  const wanted = asked.has("offset");
  function find(event: FormEvent<HTMLFormElement>) {
    event.preventDefault();
    const said = new URLSearchParams([...new FormData(event.currentTarget)].map(([field, value]) => [field, `${value}`]));
    if (`${said}` === `${asked}`) setTurn((n) => n + 1);
    else location.hash = `${to(name, "places")}?${said}`;
  }
  return (
    <>
      <form className="row" key={`${asked}`} onSubmit={find}>
        {topics.length > 1 && <label>Topic <select name="topic" defaultValue={asked.get("topic") ?? topics[0]}>{topics.map((of) => <option key={of}>{of}</option>)}</select></label>}
        <label>Partition <input name="partition" required inputMode="numeric" pattern="\d+" defaultValue={asked.get("partition") ?? "0"} /></label>
        <label>Offset <input name="offset" required inputMode="numeric" pattern="\d+" defaultValue={asked.get("offset") ?? ""} /></label>
        <button>Find it</button>
      </form>
      {wanted && <Found key={`${asked} ${turn}`} name={name} asked={asked} />}
    </>
  );
}

function Found({ name, asked }: { name: string; asked: URLSearchParams }) {
  const { value: where, error } = useAsked<Where>(`pipelines/${encodeURIComponent(name)}/where`, Object.fromEntries(asked));
  if (!where) return <Answer error={error} waits />;
  if (!where.places.length)
    return <p role="status">No transaction has offset {number(where.offset)} of partition {where.partition}{where.is_of_several && ` of ${where.topic}`}{where.planned_until === null ? "; nothing of it is planned" : `; it is planned from ${number(where.planned_from)} to ${number(where.planned_until)}`}.</p>;
  return where.places.map((place) => (
    <section key={place.source} role="status">
      <p>Transaction <a href={to(name, place.txid)}>{named(place.txid, place.revision)}</a> <Badge kind={place.state}>{place.state}</Badge> has it, in the range {number(place.from_offset)} to {number(place.until_offset)} of {place.topic}.</p>
      {place.lost_why && <p className="note">A person took it out of the plan: {place.lost_why}</p>}
      <Table label="Its rows" head={["Sink", "Rows"]}>
        {place.sinks.map((of) => <tr key={of.sink}><th scope="row">{of.sink}</th><td>{of.unknown ? WHY[of.unknown] ?? of.unknown : of.shown.map((row, n) => <pre key={n}>{row}</pre>)}</td></tr>)}
      </Table>
    </section>
  ));
}

export function PlacesPage({ name, asked }: { name: string; asked: URLSearchParams }) {
  const at = `pipelines/${encodeURIComponent(name)}`;
  const line = useAsked<Timeline>(at, { most: 1 });
  const [origins, setOrigins] = useState<Origins | null>(null);
  const [originsError, setOriginsError] = useState<Error | null>(null);
  const [sink, setSink] = useState(""), [key, setKey] = useState("");
  const of = line.value?.status;
  const sinks = of?.sinks ?? [];

  function trace(event: FormEvent) {
    event.preventDefault();
    const wanted = new URLSearchParams({ sink: sink || sinks[0] || "" });
    for (const one of key.split(/\s*,\s*/).filter(Boolean)) wanted.append("key", one);
    setOrigins(null);
    setOriginsError(null);
    get<Origins>(`${at}/origin?${wanted}`).then(setOrigins, setOriginsError);
  }
  return (
    <>
      <h1><a href={to(name)}>{name}</a>, records and rows</h1>
      <Answer error={line.error} waits={!line.value} />
      <h2>Where is this record?</h2>
      {of && <Record name={name} topics={[...of.topics, ...of.left_topics]} asked={asked} />}
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
            {origins.made.map((made, n) => <tr key={n}><th scope="row"><a href={to(name, made.txid)}>{named(made.txid, made.revision)}</a></th><td>{made.offset === null ? "many records" : <a href={toRecord(name, made.topic, made.partition!, made.offset)}>{made.topic}-{made.partition} @ {number(made.offset)}</a>}</td></tr>)}
          </Table>
          {origins.more && <p className="quiet">There are more.</p>}
          {origins.merged > 0 && <p className="quiet">Up to transaction {number(origins.merged)} deltas are merged: it stands for itself and for those before it.</p>}
        </div>
      )}
    </>
  );
}
