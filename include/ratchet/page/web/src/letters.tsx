import { useState } from "react";
import { type Counts, type Letter, type Letters, url } from "./api";
import { counted, moment, number, span, spans } from "./format";
import { MoveButton, Moves } from "./moves";
import { Answer, Table } from "./parts";
import { to, toRecord, useAsked } from "./use";

// As it was sent: to read and write JSON anew would turn 8.00 into 8, and round what has more than 15 digits.
function text(of: string | null, base64: string | null, raw: boolean): string {
  if (base64 === null) return "null";
  return raw || of === null ? base64 : of;
}

function One({ name, letter, raw }: { name: string; letter: Letter; raw: boolean }) {
  return (
    <tr>
      <th scope="row"><a href={toRecord(name, letter.topic, letter.partition, letter.offset)}>{letter.topic}-{letter.partition} @ {number(letter.offset)}</a></th>
      <td className="n"><a href={to(name, letter.txid)}>{letter.txid}</a></td>
      <td>{letter.reason}</td>
      <td><pre>{text(letter.key_text, letter.key_base64, raw)}</pre></td>
      <td><pre>{text(letter.value_text, letter.value_base64, raw)}</pre>{letter.value_size !== null && letter.value_base64 !== null && letter.value_size > 10_000 && <p className="quiet">the first 10,000 of {number(letter.value_size)} bytes</p>}</td>
      <td>{letter.headers.map((h) => `${h.key.replaceAll("\u0000", "\\u0000")}=${h.text ?? h.base64}`).join(", ") || "–"}</td>
      <td>{moment(letter.timestamp)}</td>
    </tr>
  );
}

/** What a release of the letters that are shown would be asked for with. */
function releaseOf(name: string, asked: { reason: string | null; txid: string | null }) {
  const of = asked.txid === null ? {} : { first: Number(asked.txid), last: Number(asked.txid) };
  return {
    name: "release", label: "Release these", title: `Release dead letters of ${asked.txid === null ? name : `transaction ${asked.txid} of ${name}`}`,
    does: `${asked.reason ? "All whose reason contains the text of this one" : "They"} are processed once more with today's code, from the bytes that the ledger holds. What it can read joins the transaction that it was part of; what fails again stays a dead letter.`,
    said: { ...of, error: asked.reason ?? "" },
  };
}

export function LettersPage({ name, txid }: { name: string; txid: string | null }) {
  const [reason, setReason] = useState<string | null>(null);
  const [of, setOf] = useState(txid ?? "");
  const [after, setAfter] = useState<string | null>(null);
  const [raw, setRaw] = useState(false);
  const at = `pipelines/${encodeURIComponent(name)}/letters`;
  const asked = { reason, txid: /^\d+$/.test(of) ? of : null };
  const counts = useAsked<Counts>(`${at}/counts`);
  const page = useAsked<Letters>(at, { ...asked, after });
  const chosen = counts.value?.reasons.find((r) => r.reason === reason);
  function choose(wanted: string | null) {
    setReason(wanted);
    setAfter(null);
  }
  return (
    <Moves pipeline={name} done={() => { counts.again(); page.again(); }}>
      <h1><a href={to(name)}>{name}</a>, dead letters</h1>
      <Answer error={counts.error ?? page.error} waits={!counts.value || !page.value} />
      {counts.value && (
        <>
          <p>{number(counts.value.counted)}{counts.value.is_all ? "" : " or more"} in all.</p>
          {counts.value.asked.map((a) => <p key={a.who + a.reason + a.error} role="status" className="note">A release of the dead letters of {spans(a.first_txid, a.last_txid)}{a.transactions < a.last_txid - a.first_txid + 1 && `, ${number(a.transactions)} of them`}{a.error && ` whose reason contains “${a.error}”`} is asked for by {a.who}: {a.reason}. It waits for a run.</p>)}
          {counts.value.going_on.map((of) => <p key={of} role="status" className="note">A run releases dead letters of transaction <a href={to(name, of)}>{of}</a> now.</p>)}
          {reason !== null && (
            <p role="status" className="note row"><span>Chosen is one reason, {counted(chosen?.letters ?? 0, "letter")} of {number(counts.value.counted)}: {reason}</span> <button type="button" onClick={() => choose(null)}>Show all</button></p>
          )}
          <h2>By reason</h2>
          <Table label="By reason" head={["Reason", "Letters", "Transactions", "Show"]} empty="There is none.">
            {counts.value.reasons.map((r) => (
              <tr key={r.reason}>
                <th scope="row">{r.reason}</th><td className="n">{number(r.letters)}</td><td className="n">{span(r.first_txid, r.last_txid)}</td>
                <td className="n"><button type="button" aria-pressed={reason === r.reason} onClick={() => choose(reason === r.reason ? null : r.reason)}>Only these</button></td>
              </tr>
            ))}
          </Table>
        </>
      )}
      <h2>Letters</h2>
      <div className="row">
        <label>Transaction <input inputMode="numeric" value={of} onChange={(e) => { setOf(e.target.value); setAfter(null); }} /></label>
        <label><input type="checkbox" checked={raw} onChange={(e) => setRaw(e.target.checked)} /> as base64</label>
        <a href={url(`${at}/download`, asked)} download>Download these</a>
        {counts.value?.may_move && counts.value.counted > 0 && <MoveButton offer={releaseOf(name, asked)} />}
      </div>
      {page.value?.withheld && <p className="note">The values of this pipeline are private: who may change its DAG sees them.</p>}
      {page.value && (
        <Table label="Letters" head={["Record", "Transaction", "Reason", "Key", "Value", "Headers", "Time"]} empty="None here.">
          {page.value.letters.map((letter) => <One key={`${letter.topic}.${letter.partition}.${letter.offset}.${letter.txid}`} name={name} letter={letter} raw={raw} />)}
        </Table>
      )}
      <div className="row">
        {after !== null && <button type="button" onClick={() => setAfter(null)}>Newest</button>}
        {page.value?.next && <button type="button" onClick={() => setAfter(page.value?.next ?? null)}>More</button>}
      </div>
    </Moves>
  );
}
