import type { Json, JsonObject } from "../api/types";

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Reads a JSON object that a person wrote; an empty text is `undefined`. Throws with a sentence for that person. */
export function readObject(text: string): JsonObject | undefined {
  if (text.trim() === "") return undefined;
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch (error) {
    throw new Error(`This is not valid JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (!isObject(value)) throw new Error("A JSON object is needed, such as {\"a\": 1}.");
  return value;
}

/** What is wrong with the text of a JSON object, if anything is. */
export function problemOf(text: string, isRequired = false): string | undefined {
  if (isRequired && text.trim() === "") return "A JSON object is needed.";
  try {
    readObject(text);
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2);
}

/** The strings of a JSON list; nothing for anything else. */
export function strings(value: Json | undefined): string[] {
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === "string") : [];
}
