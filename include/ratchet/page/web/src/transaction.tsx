import type { Whole } from "./api";
import { between, counted, moment, named, number, seconds } from "./format";
import { MoveButton, Moves, MovesOf } from "./moves";
import { Answer, Badge, Facts, Run, Stands, Table, Words } from "./parts";
import { to, useAsked } from "./use";

const range = (of: { topic?: string; partition: number; from_offset: number; until_offset: number }) => `${of.topic ? `${of.topic}-` : ""}${of.partition}: ${number(of.from_offset)} to ${number(of.until_offset)}`;

function said(detail: Record<string, unknown>): string {
  if (typeof detail.why === "string") return detail.why;
  return Object.entries(detail).filter(([key]) => key !== "from").map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}

/** Whether readers have seen it before another revision took its place. */
const isReplaced = (of: Whole, r: Whole["revisions"][number]) => of.result !== null && r.state === "COMMITTED" && Object.keys(r.rows).length > 0 && r.revision < of.result.revision;

function waits({ standing, pause }: Whole): string {
  switch (standing?.waits) {
    case "turn": return `It waits for transaction ${standing.before}.`;
    case "pause": return `The line is paused behind transaction ${pause?.txid} by ${pause?.who}: ${pause?.reason}.`;
    case "clear": return "It is given up: the old result stays, and the line goes on. Once its cause is mended, retry it.";
    default: return `It waits for: ${standing?.waits}.`;
  }
}

function asked(of: NonNullable<Whole["replay"]>): string {
  const what = of.releases === null ? "A replay" : of.releases ? `A release of its dead letters whose reason contains “${of.releases}”` : "A release of its dead letters";
  return `${what} is asked for by ${of.who}: ${of.reason}. ${of.given_up ? `It is given up: ${of.given_up}` : "It waits for a run."}`;
}

export function TransactionPage({ name, txid }: { name: string; txid: string }) {
  const seen = useAsked<Whole>(`pipelines/${encodeURIComponent(name)}/transactions/${encodeURIComponent(txid)}`, {}, 3);
  const of = seen.value;
  const title = <h1><a href={to(name)}>{name}</a>, transaction {txid}</h1>;
  if (!of) return <>{title}<Answer error={seen.error} waits /></>;
  const newest = of.revisions.at(-1);
  // A release adds to what is shown, and is said below.
  const shown = of.revisions.find((r) => r.revision === of.result?.revision) ?? newest;
  return (
    <Moves pipeline={name} done={seen.again}>
      {title}
      <Answer error={seen.error} waits={false} />
      {of.halted_why ? <p role="alert" className="fault"><Words of={of.halted_why} /></p> : of.standing && <p role="status" className={of.standing.halted_at ? "fault" : "note"}>{waits(of)} {of.standing.reason}</p>}
      {of.replay && <p role="status" className={of.replay.given_up ? "fault" : "note"}>{asked(of.replay)}</p>}
      {newest && shown && (
        <Facts of={[
          ["State", <Stands key="state" of={newest} />],
          ["Rows", Object.entries(of.result?.rows ?? {}).map(([sink, rows]) => `${sink} ${number(rows)}`).join(", ") || "–"],
          ["Records", number(of.result?.records ?? newest.records)],
          ["Run", <Run key="run" dag={shown.dag_id} run={shown.run_id} />],
          ["Took", seconds(between(shown.opened_at, shown.committed_at))],
          ["Readers see", !of.result ? "nothing" : (of.result.revision ? `revision ${of.result.revision}` : "the first result") + (of.result.releases.length ? `, and ${counted(of.result.releases.length, "release")}` : "")],
          ["Code", shown.code],
        ]} />
      )}
      <nav className="row" aria-label="Neighbours">
        {of.txid > 1 && <a href={to(name, of.txid - 1)}>Before</a>}
        {of.txid < of.last_txid && <a href={to(name, of.txid + 1)}>After</a>}
        <a href={`${to(name, "letters")}?txid=${of.txid}`}>Its dead letters</a>
      </nav>
      {of.may_move && (
        <div className="row" role="group" aria-label="Moves">
          {of.standing && <MovesOf pipeline={name} of={of.standing} />}
          {of.replay && <MoveButton offer={{ name: "cancel-replay", label: of.replay.releases === null ? "Take back the replay" : "Take back the release", title: `Take back what is asked for of transaction ${of.txid} of ${name}`, said: { first: of.txid, last: of.txid }, does: "It is not asked for any more." }} />}
          {of.txid <= of.head && <MoveButton offer={{ name: "replay", label: "Replay", title: `Replay transaction ${of.txid} of ${name}`, said: { first: of.txid, last: of.txid, voided: of.applied === null }, does: "It is processed once more with today's code; the new result takes the place of the old one." }} />}
        </div>
      )}
      <h2>Ranges</h2>
      <Table label="Ranges" head={["Topic", "Partition", "From", "Until", "Offsets"]}>
        {of.ranges.map((r) => <tr key={`${r.source}.${r.partition}`}><th scope="row">{r.topic}</th><td className="n">{r.partition}</td><td className="n">{number(r.from_offset)}</td><td className="n">{number(r.until_offset)}</td><td className="n">{number(r.until_offset - r.from_offset)}</td></tr>)}
      </Table>
      {of.losses.map((loss) => <p key={loss.at + loss.partition} className="note">{range(loss)} were taken out by {loss.who}: {loss.reason}</p>)}
      {of.revisions.length > 1 && (
        <>
          <h2>Revisions</h2>
          <Table label="Revisions" head={["Revision", "What it is", "State", "Records", "Committed", "Run"]}>
            {of.revisions.map((r) => <tr key={r.revision}><th scope="row">{named(of.txid, r.revision)}</th><td>{r.what}{isReplaced(of, r) && ", replaced"}</td><td><Stands of={r} /></td><td className="n">{number(r.records)}</td><td>{moment(r.committed_at)}</td><td><Run dag={r.dag_id} run={r.run_id} /></td></tr>)}
          </Table>
        </>
      )}
      <h2>Slices</h2>
      <Table label="Slices" head={["Epoch", "Slice", "Offsets", "Try", "Voted", "Records", "Dead letters", "Rows", "Seconds", "Spark"]}>
        {of.slices.map((s) => (
          <tr key={`${s.epoch}.${s.slice}`}>
            <td className="n">{s.epoch}</td>
            <th scope="row">{s.slice}</th>
            <td>{s.ranges.map((r) => range({ ...r, topic: undefined })).join("; ")}</td>
            <td className="n">{s.try_number}</td>
            <td>{s.voted_at ? seconds(between(s.tried_at, s.voted_at)) : "not yet"}</td>
            <td className="n">{number(s.records)}</td>
            <td className="n">{number(s.dead_letters)}</td>
            <td>{s.sinks.map((v) => `${v.sink} ${number(v.rows)}`).join(", ") || "–"}</td>
            <td>{Object.entries(s.seconds).map(([step, n]) => `${step} ${n}`).join(", ") || "–"}</td>
            <td>{s.application_id && of.spark_pages[s.application_id] ? <a href={of.spark_pages[s.application_id]} target="_blank" rel="noreferrer">{s.application_id}</a> : s.application_id ?? "–"}</td>
          </tr>
        ))}
      </Table>
      <h2>Gates</h2>
      <Table label="Gates" head={["Gate", "Epoch", "Says", "Numbers"]} empty="None was asked.">
        {of.gates.map((g) => <tr key={`${g.epoch}.${g.gate}`}><th scope="row">{g.gate}</th><td className="n">{g.epoch}</td><td><Badge kind={g.yes ? "fine" : "halted"}>{g.yes ? "yes" : "no"}</Badge> {g.why}</td><td>{said(g.numbers) || "–"}</td></tr>)}
      </Table>
      <h2>Claims</h2>
      <Table label="Claims" head={["Claim", "Epoch", "Run", "Since", "Ended"]}>
        {of.claims.map((c) => <tr key={`${c.revision}.${c.number}`}><th scope="row">{c.number}</th><td className="n">{c.epoch}</td><td>{c.run}</td><td>{moment(c.at)}</td><td>{c.ended_at ? `${moment(c.ended_at)}${c.why ? `: ${c.why}` : ""}` : "no"}</td></tr>)}
      </Table>
      <h2>History</h2>
      <Table label="History" head={["At", "Move", "Epoch", "Who", "Why"]}>
        {of.history.map((e, n) => <tr key={n}><td className="n">{moment(e.at)}</td><th scope="row">{e.revision ? `${e.move} (revision ${e.revision})` : e.move}</th><td className="n">{e.epoch}</td><td>{e.who}</td><td className="text">{said(e.detail)}</td></tr>)}
      </Table>
    </Moves>
  );
}
