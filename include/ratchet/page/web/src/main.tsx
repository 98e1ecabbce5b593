import { StrictMode, useEffect, useRef } from "react";
import { createRoot } from "react-dom/client";
import { LettersPage } from "./letters";
import { LinesPage } from "./lines";
import { PipelinePage } from "./pipeline";
import { PlacesPage } from "./places";
import { RunPage } from "./run";
import { TransactionPage } from "./transaction";
import { followTheme, to, useRoute } from "./use";
import "./page.css";

function Page() {
  const { parts, asked } = useRoute();
  const [name, what, which] = parts;
  const main = useRef<HTMLElement>(null);
  const at = parts.join("/");
  useEffect(() => {
    document.title = name ? `${name} – Transactions` : "Transactions";
    if (at) main.current?.focus();
  }, [at, name]);
  return (
    <>
      <a className="skip" href="#main" onClick={(e) => { e.preventDefault(); main.current?.focus(); }}>To the content</a>
      <header>
        <nav aria-label="Pages"><a href={to()}>All pipelines</a>{name && <> <span aria-hidden="true">/</span> <a href={to(name)}>{name}</a></>}</nav>
      </header>
      <main ref={main} id="main" tabIndex={-1} key={at}>
        {!name ? <LinesPage />
          : !what ? <PipelinePage name={name} />
          : what === "letters" ? <LettersPage name={name} txid={asked.get("txid")} />
          : what === "places" ? <PlacesPage name={name} asked={asked} />
          : what === "runs" && which ? <RunPage name={name} run={which} />
          : <TransactionPage name={name} txid={what} />}
      </main>
    </>
  );
}

followTheme();
createRoot(document.getElementById("root")!).render(<StrictMode><Page /></StrictMode>);
