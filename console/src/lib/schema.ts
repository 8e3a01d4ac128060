// The part of JSON Schema that forms need. Validation is the server's matter.
import type { Json, JsonObject } from "../api/types";

export type Schema = JsonObject;

export type FormKind = "text" | "number" | "boolean" | "choice" | "object" | "array" | "json";

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Follows `$ref` inside the document, and takes the one alternative that is not null. */
export function resolve(schema: Json | undefined, root: Schema): Schema {
  let present = isObject(schema) ? schema : {};
  for (let depth = 0; depth < 16; depth += 1) {
    const reference = present["$ref"];
    const alternatives = present["anyOf"] ?? present["oneOf"];
    if (typeof reference === "string" && reference.startsWith("#/")) {
      let found: Json | undefined = root;
      for (const part of reference.slice(2).split("/")) {
        found = isObject(found) ? found[part.replaceAll("~1", "/").replaceAll("~0", "~")] : undefined;
      }
      const { $ref: _reference, ...rest } = present;
      present = { ...(isObject(found) ? found : {}), ...rest };
    } else if (Array.isArray(alternatives)) {
      const real = alternatives.filter((each) => !(isObject(each) && each["type"] === "null"));
      if (real.length !== 1 || !isObject(real[0])) return present;
      const { anyOf: _any, oneOf: _one, ...rest } = present;
      present = { ...real[0], ...rest };
    } else {
      return present;
    }
  }
  return present;
}

export function typeOf(schema: Schema): string | undefined {
  const { type } = schema;
  if (Array.isArray(type)) {
    const real = type.filter((each) => each !== "null");
    return real.length === 1 && typeof real[0] === "string" ? real[0] : undefined;
  }
  if (typeof type === "string") return type;
  return isObject(schema["properties"]) ? "object" : undefined;
}

export function kindOf(schema: Schema): FormKind {
  if (Array.isArray(schema["enum"]) || "const" in schema) return "choice";
  if (schema["anyOf"] || schema["oneOf"]) return "json";
  switch (typeOf(schema)) {
    case "string":
      return "text";
    case "integer":
    case "number":
      return "number";
    case "boolean":
      return "boolean";
    case "object":
      return isObject(schema["properties"]) ? "object" : "json";
    case "array":
      return isObject(schema["items"]) ? "array" : "json";
    default:
      return "json";
  }
}

export function choicesOf(schema: Schema): Json[] {
  const choices = schema["enum"];
  if (Array.isArray(choices)) return choices;
  return "const" in schema ? [schema["const"] ?? null] : [];
}

export function propertiesOf(schema: Schema): [string, Json][] {
  const properties = schema["properties"];
  return isObject(properties) ? Object.entries(properties) : [];
}

export function isRequired(schema: Schema, name: string): boolean {
  const required = schema["required"];
  return Array.isArray(required) && required.includes(name);
}

/** The value with which a form begins: what the schema proposes, and what it needs. */
export function initialOf(schema: Json | undefined, root: Schema): Json | undefined {
  const resolved = resolve(schema, root);
  if ("default" in resolved) return resolved["default"];
  if ("const" in resolved) return resolved["const"];
  if (kindOf(resolved) === "object") {
    const value: JsonObject = {};
    for (const [name, property] of propertiesOf(resolved)) {
      const initial = initialOf(property, root);
      if (initial !== undefined && (isRequired(resolved, name) || !isObject(initial))) value[name] = initial;
    }
    return value;
  }
  if (kindOf(resolved) === "array") return [];
  return undefined;
}

/** The schema of the arguments of `tool` inside the schema of an answer to an approval. */
export function argsSchemaOf(response: Schema, tool: string): Schema | undefined {
  const definitions = response["$defs"];
  const action = isObject(definitions) ? definitions["action"] : undefined;
  const rules = isObject(action) ? action["allOf"] : undefined;
  if (!Array.isArray(rules)) return undefined;
  for (const rule of rules) {
    if (!isObject(rule)) continue;
    const name = at(rule, "if", "properties", "name", "const");
    const args = at(rule, "then", "properties", "args");
    if (name === tool && isObject(args)) return args;
  }
  return undefined;
}

function at(value: Json | undefined, ...path: string[]): Json | undefined {
  return path.reduce<Json | undefined>((found, part) => (isObject(found) ? found[part] : undefined), value);
}

/** Where a refusal of the server belongs: `decisions.0.edited_action.args: "text" is a required property`. */
export function placeOf(detail: string): { path: string[]; message: string } | undefined {
  const found = /^([\w.[\]-]+): ([\s\S]+)$/.exec(detail);
  if (!found?.[1] || !found[2]) return undefined;
  const path = found[1].replaceAll(/\[(\d+)\]/g, ".$1").split(".").filter(Boolean);
  const missing = /^"([^"]+)" is a required property/.exec(found[2]);
  if (missing?.[1]) return { path: [...path, missing[1]], message: "This is needed." };
  return { path, message: found[2] };
}
