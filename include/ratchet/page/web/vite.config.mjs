import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Paths are relative, since Airflow may be mounted below any path.
export default defineConfig({
  plugins: [react()],
  base: "./",
  build: {
    outDir: "../static",
    emptyOutDir: true,
    // Names without hashes: a build of the same source gives the same files.
    rollupOptions: {
      output: { entryFileNames: "page.js", chunkFileNames: "[name].js", assetFileNames: "page[extname]" },
    },
  },
});
