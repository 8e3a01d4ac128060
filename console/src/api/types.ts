// What the server answers where the SDK has no type for it. See `openapi/openapi.json`.

export interface Caller {
  identity: string;
  display_name: string | null;
  tenant: string;
  roles: string[];
  scopes: string[] | null;
  credential: "api_key" | "jwt" | "hook" | "none";
  claims: Record<string, unknown>;
  expires_at: string | null;
}

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };
