import { useEffect, useState } from "react";
import type { Bar, Lags, Timeline } from "./api";
import { Bars, Rates } from "./bars";
import { ago, counted, moment, named, number, seconds, spans } from "./format";
import { MoveButton, Moves, MovesOf } from "./moves";
import { Answer, Badge, Facts, Run, Stands, Table, Words, revised } from "./parts";
import { to, useAsked } from "./use";

/** Of what readers see all of it, also what releases have added; those say what they are. */
function rowsOf(bar: Bar): string {
  const rows = Object.entries(bar.result?.rows ?? bar.rows).map(([sink, rows]) => `${sink} ${number(rows)}`).join(", ");
  return bar.releases !== null ? bar.what + (rows && `, which adds ${rows}`) : rows || "–";
}

export function PipelinePage({ name }: { name: string }) {
  const [before, setBefore] = useState<number | null>(null);
  const [first, setFirst] = useState(""), [last, setLast] = useState(""), [behind, setBehind] = useState("");
  const seen = useAsked<Timeline>(`pipelines/${encodeURIComponent(name)}`, { before, most: 50 }, before === null ? 3 : null);
  const lags = useAsked<Lags>("lag", {}, 15), askLags = lags.again;
  const lag = lags.value?.lags.find((of) => of.pipeline === name);
  const of = seen.value, head = of?.status.head;
  // What is committed or voided is behind no more; that is not to be said some seconds later.
  useEffect(() => { if (head !== undefined) askLags(); }, [head, askLags]);
  if (!of) return <><h1>{name}</h1><Answer error={seen.error} waits /></>;
  const line = of.status;
  const range = { first: Number(first), last: Number(last || first) };
  const isRange = Number.isInteger(range.first) && range.first >= 1 && Number.isInteger(range.last) && range.last >= range.first;
  const those = spans(range.first, range.last);
  const waiting = line.releases === 0 ? "Take back a replay" : line.releases === line.replays ? "Take back a release" : "Take back a replay or release";
  return (
    <Moves pipeline={name} done={() => { seen.again(); askLags(); }}>
      <h1>{name}</h1>
      <Answer error={seen.error} waits={false} />
      {line.halted_why && <p role="alert" className="fault"><Words of={line.halted_why} /></p>}
      {line.paused_why && <p role="status" className="note"><Words of={line.paused_why} /></p>}
      {line.asked && <p role="status" className="note">{line.asked}.</p>}
      <Facts of={[
        ["Head", `${number(line.head)} of ${number(line.last_txid)}`],
        ["In flight", [number(line.in_flight), ...revised(line)].join(", ")],
        ["Last commit", ago(line.committed_at, line.at)],
        ["Behind", lag ? (lag.is_told ? `${counted(lag.records, "record")}${lag.seconds !== null ? `, ${seconds(lag.seconds)}` : ""}` : "Kafka does not tell of the topic") : "–"],
        ["Topic", line.topic],
        ["Last 10 min", `${counted(line.rate.transactions, "transaction")}, ${counted(line.rate.records, "record")}`],
      ]} />
      {line.said.length > 1 && <details><summary>As the command says it</summary>{line.said.map((said) => <p key={said}><Words of={said} /></p>)}</details>}
      <nav aria-label={`Of ${name}`} className="row">
        <a href={to(name, "letters")}>Dead letters</a>
        <a href={to(name, "places")}>Where is a record?</a>
      </nav>
      {line.unfinished.length > 0 && (
        <>
          <h2>Unfinished</h2>
          <Table label="Unfinished" head={["Transaction", "State", "Votes", "Failures", "Why", ...(line.may_move ? ["Moves"] : [])]}>
            {line.unfinished.map((t) => (
              <tr key={`${t.txid}.${t.revision}`}>
                <th scope="row"><a href={to(name, t.txid)}>{named(t.txid, t.revision)}</a>{t.revision > 0 && ` (${t.releases === null ? "replay" : "release"})`}</th>
                <td><Stands of={t} /></td>
                <td className="n">{t.voted} of {t.slices}</td>
                <td className="n">{t.failures}</td>
                <td className="text"><Words of={t.why} /></td>
                {line.may_move && (
                  <td className="row">
                    <MovesOf pipeline={name} of={t} />
                  </td>
                )}
              </tr>
            ))}
          </Table>
        </>
      )}
      {line.destinations.length > 0 && (
        <>
          <h2>Destinations</h2>
          <Table label="Destinations" head={["Destination", "Rows of", "State", "Step", "What that means", ...(line.may_move ? ["Moves"] : [])]}>
            {line.destinations.map((each) => (
              <tr key={each.destination}>
                <th scope="row">{each.destination}</th>
                <td>{each.sink}</td>
                <td><Badge kind={each.detached_at ? "waits" : each.step < each.last ? "works" : "fine"}>{each.detached_at ? "detached" : each.step < each.last ? "behind" : "has all"}</Badge></td>
                <td className="n">{number(each.step)} of {number(each.last)}</td>
                <td className="text"><Words of={each.said} /></td>
                {line.may_move && (
                  <td className="row">
                    {!each.detached_at && <MoveButton offer={{ name: "detach", label: "Detach", title: `Detach ${each.destination} from ${name}`, said: { destination: each.destination }, does: "The line goes on without it, and it gets nothing until the command brings it back." }} />}
                  </td>
                )}
              </tr>
            ))}
          </Table>
        </>
      )}
      <h2>Transactions</h2>
      <Bars pipeline={name} bars={of.bars} now={line.at} />
      <div className="row">
        {before !== null && <button type="button" onClick={() => setBefore(null)}>Newest</button>}
        {of.earlier !== null && <button type="button" onClick={() => setBefore(of.earlier)}>Earlier</button>}
        {of.pruned > 0 && of.earlier === null && <span className="quiet">Up to {number(of.pruned)} they are pruned from the ledger.</span>}
      </div>
      <Rates bars={of.bars} />
      {of.took.length > 0 && (
        <Table label="How long each phase took" head={["Phase", "Transactions", "Median", "95 %"]}>
          {of.took.map((t) => <tr key={t.phase}><th scope="row">{t.phase}</th><td className="n">{t.transactions}</td><td className="n">{seconds(t.median)}</td><td className="n">{seconds(t.p95)}</td></tr>)}
        </Table>
      )}
      <h2>As a table</h2>
      <Table label="Transactions" head={["Transaction", "State", "Records", "Rows", "Begun", "Run"]}>
        {of.bars.map((bar) => (
          <tr key={`${bar.txid}.${bar.revision}`}>
            <th scope="row"><a href={to(name, bar.txid)}>{named(bar.txid, bar.revision)}</a></th>
            <td><Stands of={bar} />{bar.is_replaced && " replaced"}</td>
            <td className="n">{bar.releases === null ? number(bar.result?.records ?? bar.records) : "–"}</td>
            <td className="text">{rowsOf(bar)}</td>
            <td>{moment(bar.opened_at)}</td>
            <td><Run dag={bar.dag_id} run={bar.run_id} /></td>
          </tr>
        ))}
      </Table>
      <h2>Sinks</h2>
      <Table label="Sinks" head={["Table", "Kind", "Readers see", "Expired"]} empty="None is made yet; ratchet migrate makes them.">
        {of.sinks.map((sink) => <tr key={sink.schema + sink.name}><th scope="row">{sink.schema}.{sink.name}</th><td>{sink.kind}</td><td>{sink.shows}</td><td>{sink.expired_rows ? `${counted(sink.expired_rows, "row")} up to ${sink.expired_until}` : "–"}</td></tr>)}
      </Table>
      {of.compacted > 0 && <p className="quiet">Up to {number(of.compacted)} nothing can be revised any more.</p>}
      {line.may_move && (
        <>
          <h2>Moves</h2>
          <form className="row" onSubmit={(event) => event.preventDefault()}>
            <label>Replay transactions from <input inputMode="numeric" value={first} onChange={(e) => setFirst(e.target.value)} /></label>
            <label>to <input inputMode="numeric" value={last} onChange={(e) => setLast(e.target.value)} /></label>
            <MoveButton disabled={!isRange} offer={{ name: "replay", label: "Replay", title: `Replay ${those} of ${name}`, said: range, does: "These transactions are processed once more with today's code; each new result takes the place of the old one." }} />
            {line.replays > 0 && <MoveButton disabled={!isRange} offer={{ name: "cancel-replay", label: waiting, title: `${waiting} of ${those} of ${name}`, said: range, does: "Revisions that are asked for and not begun are forgotten." }} />}
          </form>
          <form className="row" onSubmit={(event) => event.preventDefault()}>
            <label>Pause behind transaction <input inputMode="numeric" placeholder="the last one" value={behind} onChange={(e) => setBehind(e.target.value)} /></label>
            {behind.trim() === "" || (Number.isInteger(Number(behind)) && Number(behind) >= 1) ? (
              <MoveButton offer={{ name: "pause-at", label: "Pause", title: `Pause ${name}`, said: behind.trim() ? { txid: Number(behind) } : {}, does: "The line stops behind this transaction: everything up to it is committed, and nothing later is begun or committed." }} />
            ) : (
              <span className="quiet">Say the number of a transaction, or none.</span>
            )}
            {line.pause && <MoveButton offer={{ name: "resume", label: "Resume", title: `Resume ${name}`, said: {}, does: "The line goes on: what waits is committed, and runs start again." }} />}
          </form>
          <div className="row">
            <MoveButton offer={{ name: "accept-loss", label: "Accept a loss", title: `Accept a loss of ${name}`, grave: true, said: {}, does: "The line goes on without records that Kafka has deleted before they were processed, or with what the topic has become." }} />
            <span className="quiet">{lag?.lost ? `Kafka has deleted ${counted(lag.lost, "record")} that no transaction has.` : lag?.is_made_again ? "The topic was made again." : "For when a run has failed since Kafka has no longer what it needs."}</span>
          </div>
        </>
      )}
    </Moves>
  );
}
