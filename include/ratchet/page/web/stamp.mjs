// Notes of which source the page was built, so that a test without Node can tell whether it is the present one.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const files = ["index.html", "package-lock.json", "vite.config.mjs", ...readdirSync("src").sort().map((f) => `src/${f}`)];
const hash = createHash("sha256");
for (const file of files) hash.update(file).update("\0").update(readFileSync(file)).update("\0");
writeFileSync("../static/source.sha256", hash.digest("hex") + "\n");
