import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// `npm run dev` serves the console on a port of its own and passes all other requests to a server, so that the page
// has one origin there as well.
const server = "http://127.0.0.1:8123";

export default defineConfig({
  base: "/console/",
  plugins: [react()],
  build: {
    outDir: "dist",
    assetsDir: "assets",
    target: "es2022",
    sourcemap: false,
    // The licences of all packages whose code is inside.
    license: { fileName: "licenses.md" },
    // Data of files inside the page would need a weaker content security policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    chunkSizeWarningLimit: 1500,
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name]-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
  server: {
    host: "127.0.0.1",
    proxy: { "^/(?!console/)": { target: server, changeOrigin: true, ws: true } },
  },
});
