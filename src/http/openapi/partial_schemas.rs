//! The schemas of responses that contain only selected fields: no field is required.

use std::collections::{BTreeMap, BTreeSet};

use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::schema::ArrayItems;
use utoipa::openapi::{Components, Content, OpenApi, Ref, RefOr, Schema};

const SELECT: &str = "select";
const SCHEMAS: &str = "#/components/schemas/";

type Schemas = BTreeMap<String, RefOr<Schema>>;

/// Gives each operation with a parameter or field `select` a response whose fields are optional.
pub(super) fn add_partial_schemas(document: &mut OpenApi) {
    let components = document.components.get_or_insert_with(Components::new);
    let mut partial = BTreeSet::new();
    for item in document.paths.paths.values_mut() {
        for operation in super::operations(item).filter(|operation| selects(operation, &components.schemas)) {
            let responses = operation
                .responses
                .responses
                .iter_mut()
                .filter(|(status, _)| status.starts_with('2'));
            for content in responses
                .filter_map(|(_, response)| value_of(response))
                .flat_map(|all| all.content.values_mut())
            {
                partial.extend(
                    value_of(content)
                        .and_then(|content| content.schema.as_mut())
                        .and_then(refer_to_part),
                );
            }
        }
    }
    for name in partial {
        let Some(RefOr::T(Schema::Object(whole))) = components.schemas.get(&name) else {
            continue;
        };
        let mut part = whole.clone();
        part.required.clear();
        components
            .schemas
            .insert(partial_name(&name), Schema::Object(part).into());
    }
}

fn partial_name(name: &str) -> String {
    format!("{name}Part")
}

fn value_of<T>(reference: &mut RefOr<T>) -> Option<&mut T> {
    match reference {
        RefOr::T(value) => Some(value),
        RefOr::Ref(_) => None,
    }
}

/// Returns true if a request can select fields.
fn selects(operation: &Operation, schemas: &Schemas) -> bool {
    let is_select = |parameter: &RefOr<Parameter>| matches!(parameter, RefOr::T(parameter) if parameter.name == SELECT);
    let in_query = operation.parameters.iter().flatten().any(is_select);
    let has_field = |content: &RefOr<Content>| {
        let RefOr::T(content) = content else { return false };
        let Some(RefOr::Ref(body)) = &content.schema else {
            return false;
        };
        let schema = body
            .ref_location
            .strip_prefix(SCHEMAS)
            .and_then(|name| schemas.get(name));
        matches!(schema, Some(RefOr::T(Schema::Object(body))) if body.properties.contains_key(SELECT))
    };
    let body = match &operation.request_body {
        Some(RefOr::T(body)) => Some(body),
        Some(RefOr::Ref(_)) | None => None,
    };
    in_query || body.is_some_and(|body| body.content.values().any(has_field))
}

/// Replaces the schema, or that of its items, by the partial one. Returns the name of the full schema.
fn refer_to_part(schema: &mut RefOr<Schema>) -> Option<String> {
    match schema {
        RefOr::Ref(whole) => {
            let name = whole.ref_location.strip_prefix(SCHEMAS)?.to_owned();
            *whole = Ref::from_schema_name(partial_name(&name));
            Some(name)
        }
        RefOr::T(Schema::Array(list)) => match &mut list.items {
            ArrayItems::RefOrSchema(item) => refer_to_part(item),
            ArrayItems::False => None,
        },
        RefOr::T(_) => None,
    }
}
