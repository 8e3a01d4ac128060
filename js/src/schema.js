// JSON Schemas: given as such, or made of the schemas of zod 3 and 4.

import { ToolError } from "./error.js";

/** Returns whether this is a schema of zod or of a library like it. */
export function isZod(schema) {
  return typeof schema?.safeParse === "function";
}

/** Returns the JSON Schema of a schema. */
export function toJsonSchema(schema) {
  if (!isZod(schema)) return schema;
  if (typeof schema.toJSONSchema === "function") {
    // A copy has nothing but JSON.
    const { $schema: _, ...made } = JSON.parse(JSON.stringify(schema.toJSONSchema({ io: "input" })));
    return made;
  }
  const standard = schema["~standard"]?.jsonSchema?.input;
  if (typeof standard === "function") {
    const { $schema: _, ...made } = standard({ target: "draft-2020-12" });
    return made;
  }
  if (schema._def?.typeName) return fromZod3(schema);
  throw new TypeError("the schema is neither a JSON Schema nor one of zod 3 or zod 4.2 and later");
}

/** Returns the JSON Schema of a schema of zod 3. */
function fromZod3(schema) {
  const def = schema._def;
  const made = converted(def);
  return schema.description === undefined ? made : { ...made, description: schema.description };
}

function converted(def) {
  switch (def.typeName) {
    case "ZodString":
      return { type: "string", ...checks(def, { min: "minLength", max: "maxLength" }) };
    case "ZodNumber":
      return {
        type: def.checks.some((check) => check.kind === "int") ? "integer" : "number",
        ...checks(def, { min: "minimum", max: "maximum" }),
      };
    case "ZodBoolean":
      return { type: "boolean" };
    case "ZodNull":
      return { type: "null" };
    case "ZodAny":
    case "ZodUnknown":
      return {};
    case "ZodLiteral":
      return { const: def.value };
    case "ZodEnum":
      return { type: "string", enum: [...def.values] };
    case "ZodNativeEnum":
      return { enum: Object.entries(def.values).filter(([key]) => Number.isNaN(Number(key))).map(([, value]) => value) };
    case "ZodArray":
      return {
        type: "array",
        items: fromZod3(def.type),
        ...(def.minLength ? { minItems: def.minLength.value } : {}),
        ...(def.maxLength ? { maxItems: def.maxLength.value } : {}),
      };
    case "ZodTuple":
      return { type: "array", prefixItems: def.items.map(fromZod3), minItems: def.items.length };
    case "ZodRecord":
      return { type: "object", additionalProperties: fromZod3(def.valueType) };
    case "ZodUnion":
      return { anyOf: def.options.map(fromZod3) };
    case "ZodDiscriminatedUnion":
      return { anyOf: [...def.options.values()].map(fromZod3) };
    case "ZodIntersection":
      return { allOf: [fromZod3(def.left), fromZod3(def.right)] };
    case "ZodNullable":
      return { anyOf: [fromZod3(def.innerType), { type: "null" }] };
    case "ZodDefault":
      return { ...fromZod3(def.innerType), default: def.defaultValue() };
    case "ZodOptional":
    case "ZodReadonly":
    case "ZodCatch":
      return fromZod3(def.innerType);
    case "ZodBranded":
      return fromZod3(def.type);
    case "ZodEffects":
      return fromZod3(def.schema);
    case "ZodPipeline":
      return fromZod3(def.in);
    case "ZodLazy":
      throw new TypeError("a lazy schema of zod 3 has no JSON Schema; give one yourself");
    case "ZodObject":
      return object(def);
    default:
      throw new TypeError(`a schema of the kind ${def.typeName} has no JSON Schema; give one yourself`);
  }
}

function object(def) {
  const shape = Object.entries(def.shape());
  const required = shape.filter(([, inner]) => !inner.isOptional()).map(([name]) => name);
  return {
    type: "object",
    properties: Object.fromEntries(shape.map(([name, inner]) => [name, fromZod3(inner)])),
    ...(required.length > 0 ? { required } : {}),
    additionalProperties: def.unknownKeys === "passthrough",
  };
}

function checks(def, names) {
  const known = def.checks.filter((check) => names[check.kind] !== undefined);
  return Object.fromEntries(known.map((check) => [names[check.kind], check.value]));
}

/** Returns the value as the schema of zod reads it; JSON Schemas are checked by the server of the agents. */
export function validated(schema, value) {
  if (!isZod(schema)) return value;
  const read = schema.safeParse(value);
  if (read.success) return read.data;
  const lines = read.error.issues.slice(0, 20).map((issue) => `- ${issue.path.join(".") || "the whole"}: ${issue.message}`);
  throw new ToolError(`The arguments do not fit. Nothing was run.\n${lines.join("\n")}`);
}
