import { useCallback, useEffect, useState } from "react";
import { Failed, get } from "./api";

export interface Asked<T> { value: T | null; error: Failed | Error | null; again: () => void }

type Questions = Record<string, string | number | null | undefined>;

/** Asks once, and every so many seconds while the page is seen; keeps the last answer while a later one fails. */
export function useAsked<T>(path: string, asked: Questions = {}, every: number | null = null): Asked<T> {
  const key = JSON.stringify([path, asked]);
  const [found, setFound] = useState<{ key: string; value: T | null; error: Error | null }>({ key, value: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const ended = new AbortController();
    const [at, of] = JSON.parse(key) as [string, Questions];
    get<T>(at, of, ended.signal).then(
      (value) => setFound({ key, value, error: null }),
      (error: Error) => {
        if (!ended.signal.aborted) setFound((before) => ({ key, value: before.key === key ? before.value : null, error }));
      },
    );
    return () => ended.abort();
  }, [key, turn]);
  useEffect(() => {
    if (every === null) return;
    const timer = setInterval(() => document.visibilityState === "visible" && setTurn((n) => n + 1), every * 1000);
    return () => clearInterval(timer);
  }, [every]);
  const again = useCallback(() => setTurn((n) => n + 1), []);
  return found.key === key ? { value: found.value, error: found.error, again } : { value: null, error: null, again };
}

/** The parts of the address behind `#/`, decoded, and what is asked behind `?`. */
export function useRoute(): { parts: string[]; asked: URLSearchParams } {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), asked: new URLSearchParams(query) };
}

export const to = (...parts: (string | number)[]): string => "#/" + parts.map((part) => encodeURIComponent(part)).join("/");

/** The page on which the record is looked for; `topic` is read where the line has several. */
export const toRecord = (name: string, topic: string, partition: number, offset: number): string =>
  `${to(name, "places")}?${new URLSearchParams({ topic, partition: `${partition}`, offset: `${offset}` })}`;

/** Airflow shows the page in a frame, and says by a class of its own document whether it is dark. */
export function followTheme(): void {
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  let outer: HTMLElement | null = null;
  try {
    outer = window.parent !== window ? window.parent.document.documentElement : null;
  } catch {
    // Another site's frame; it is none of ours.
  }
  const apply = () => {
    const said = outer?.classList.contains("dark") ? true : outer?.classList.contains("light") ? false : prefers.matches;
    document.documentElement.dataset.theme = said ? "dark" : "light";
  };
  apply();
  prefers.addEventListener("change", apply);
  if (outer) new MutationObserver(apply).observe(outer, { attributes: true, attributeFilter: ["class"] });
}
