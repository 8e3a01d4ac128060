use std::time::Instant;

use serde_json::json;

use super::*;

/// Returns alternatives of two references to the previous definition, `levels` deep: 2^levels errors for a value that
/// does not fit.
fn doubling(levels: usize, reference: impl Fn(usize) -> Value) -> Value {
    let mut definitions = Map::new();
    definitions.insert("d0".to_owned(), json!({"$anchor": "d0", "type": "string"}));
    for level in 1..=levels {
        let before = reference(level - 1);
        let name = format!("d{level}");
        definitions.insert(name.clone(), json!({"$anchor": name, "anyOf": [before, before]}));
    }
    json!({"type": "object", "properties": {"a": reference(levels)}, "$defs": definitions})
}

fn refused(schema: &Value) -> String {
    match Schema::compile(schema) {
        Ok(schema) => panic!("admitted: {schema:?}"),
        Err(error) => error.reason,
    }
}

fn admitted(schema: &Value) -> Schema {
    Schema::compile(schema).unwrap_or_else(|error| panic!("refused: {error}"))
}

#[test]
fn a_schema_that_doubles_at_each_level_is_refused_however_it_refers() {
    let by_pointer = |level| json!({"$ref": format!("#/$defs/d{level}")});
    let by_anchor = |level| json!({"$ref": format!("#d{level}")});
    for reference in [&by_pointer as &dyn Fn(usize) -> Value, &by_anchor] {
        assert!(refused(&doubling(24, reference)).contains("too large"));
        assert!(refused(&doubling(10, reference)).contains("too large"));
        let few = admitted(&doubling(5, reference));
        assert!(matches!(few.validate(&json!({"a": "x"})), SchemaCheck::Fits));
        assert!(matches!(few.validate(&json!({"a": 1})), SchemaCheck::Wrong(errors) if errors.len() == 1));
    }
}

#[test]
fn a_schema_that_doubles_with_the_depth_of_the_value_is_admitted_only_while_small() {
    let mut definitions = json!({"d0": {"type": "string"}});
    for level in 1..=24 {
        let before = json!({"properties": {"c": {"$ref": format!("#/$defs/d{}", level - 1)}}});
        definitions[format!("d{level}")] = json!({"anyOf": [before, before]});
    }
    assert!(refused(&json!({"$ref": "#/$defs/d24", "$defs": definitions})).contains("too large"));
}

#[test]
fn a_schema_whose_fields_double_at_each_level_is_refused() {
    let mut definitions = json!({"d0": {"type": "string"}});
    for level in 1..=24 {
        let before = json!({"$ref": format!("#/$defs/d{}", level - 1)});
        definitions[format!("d{level}")] = json!({"properties": {"a": before, "b": before}});
    }
    assert!(refused(&json!({"$ref": "#/$defs/d24", "$defs": definitions})).contains("parts"));
}

#[test]
fn a_recursive_schema_is_checked_fast_without_computing_errors() {
    let twice = json!({"properties": {"c": {"$ref": "#/$defs/n"}}, "patternProperties": {"c": {"$ref": "#/$defs/n"}}});
    let either =
        json!({"properties": {"c": {"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}}, "type": "object"});
    for node in [twice, either] {
        let schema = admitted(&json!({"$ref": "#/$defs/n", "$defs": {"n": node}}));
        let nested = |inner: Value| (0..60).fold(inner, |inner, _| json!({"c": inner}));
        let begun = Instant::now();
        assert!(matches!(schema.validate(&nested(json!({}))), SchemaCheck::Fits));
        let _ = schema.validate(&nested(json!(7)));
        assert!(begun.elapsed().as_millis() < 500, "{:?}", begun.elapsed());
    }
}

#[test]
fn a_recursive_schema_without_alternatives_yields_errors() {
    let schema = admitted(&json!({"type": "object", "properties": {
        "name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}}}));
    let wrong = schema.check("context", &json!({"children": [{"children": [{"name": 7}]}]}));
    assert_eq!(
        wrong.map_err(|invalid| invalid.field),
        Err("context.children.0.children.0.name".to_owned())
    );
}

#[test]
fn many_optional_fields_are_no_alternatives_of_each_other() {
    let optional = json!({"anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]});
    let fields: Map<String, Value> = (0..500).map(|at| (format!("f{at}"), optional.clone())).collect();
    let leaf = json!({"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}}});
    let schema = admitted(&json!({"type": "object", "properties": fields, "$defs": {"Leaf": leaf}}));
    assert!(matches!(
        schema.validate(&json!({"f7": {"x": 1}})),
        SchemaCheck::Wrong(_)
    ));
}

#[test]
fn long_chains_of_references_are_refused_before_recursion() {
    let chain = |links: usize| {
        let mut definitions: Map<String, Value> = (0..links)
            .map(|at| (format!("d{at}"), json!({"$ref": format!("#/$defs/d{}", at + 1)})))
            .collect();
        definitions.insert(format!("d{links}"), json!({"type": "string"}));
        json!({"$ref": "#/$defs/d0", "$defs": definitions})
    };
    assert!(refused(&chain(5_000)).contains("follow upon each other"));
    let nested: Map<String, Value> = (0..5_000)
        .map(|at| {
            (
                format!("d{at}"),
                json!({"items": {"$ref": format!("#/$defs/d{}", at + 1)}}),
            )
        })
        .collect();
    let mut nested = json!({"$ref": "#/$defs/d0", "$defs": nested});
    nested["$defs"]["d5000"] = json!({"type": "string"});
    assert!(refused(&nested).contains("nests deeper"));
}

#[test]
fn the_worst_admitted_recursion_fits_on_a_thread_stack() {
    // Each level of the value is checked through the longest chain of references allowed.
    let links = MAX_DEPTH_PER_VALUE - 2;
    let mut definitions: Map<String, Value> = (0..links)
        .map(|at| (format!("d{at}"), json!({"$ref": format!("#/$defs/d{}", at + 1)})))
        .collect();
    definitions.insert(
        format!("d{links}"),
        json!({"properties": {"c": {"$ref": "#/$defs/d0"}}}),
    );
    let schema = admitted(&json!({"$ref": "#/$defs/d0", "$defs": definitions}));
    let deepest = (0..json_limits::MAX_DEPTH).fold(json!(1), |inner, _| json!({"c": inner}));
    let judged = std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
        let thread = small.spawn_scoped(scope, || matches!(schema.validate(&deepest), SchemaCheck::Fits));
        thread.expect("a thread").join()
    });
    assert!(judged.expect("no overflow"));
}

#[test]
fn long_texts_many_patterns_and_large_ones_are_refused() {
    assert!(refused(&json!({"description": "x".repeat(MAX_BYTES)})).contains("longer than"));
    assert!(refused(&json!({"pattern": "x".repeat(MAX_PATTERN_BYTES + 1)})).contains("regular expression"));
    let many: Map<String, Value> = (0..=MAX_PATTERNS).map(|at| (format!("^{at}"), json!(true))).collect();
    assert!(refused(&json!({"patternProperties": many})).contains("regular expressions"));
    assert!(Schema::compile(&json!({"pattern": "((\\w{100}){100}){100}"})).is_err());
    let usual = ["^(?!x)y$", "^[a-z]{1,64}$", "^\\w{1,255}$"];
    let refused = usual.map(|pattern| Schema::compile(&json!({"pattern": pattern})).err());
    assert_eq!(refused, [None, None, None]);
}

#[test]
fn references_without_a_target_or_to_remote_schemas_are_refused() {
    for to in [
        "#/$defs/none",
        "#none",
        "https://example.org/other.json",
        "file:///etc/passwd",
    ] {
        assert!(refused(&json!({"$ref": to})).contains("leads nowhere"), "{to}");
    }
    assert!(matches!(
        admitted(&json!({"$ref": "https://json-schema.org/draft/2020-12/schema"})).validate(&json!({"type": 7})),
        SchemaCheck::Unexplained(_)
    ));
    let inside = json!({"$ref": "leaf", "$defs": {"a": {"$id": "https://example.org/leaf", "$ref": "#/$defs/b",
        "$defs": {"b": {"type": "string"}}}}, "$id": "https://example.org/root"});
    assert!(matches!(admitted(&inside).validate(&json!("x")), SchemaCheck::Fits));
}

#[test]
fn a_large_invalid_value_has_few_errors() {
    let schema = admitted(&json!({"type": "array", "items": {"type": "string"}}));
    let many: Value = vec![7; 100_000].into();
    assert!(matches!(schema.validate(&many), SchemaCheck::Wrong(errors) if errors.len() == 1));
    let schema = admitted(&json!({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}));
    assert!(matches!(schema.validate(&many), SchemaCheck::Unexplained(_)));
    assert!(schema.takes_long(&many) && !schema.takes_long(&json!([1, 2])));
}

#[test]
fn the_last_schemas_are_compiled_once() {
    let kept = KeptSchemas::new();
    let of = |number: usize| SchemaText::from(json!({"type": "object", "minProperties": number}));
    let compile = |number: usize| kept.compile(&of(number)).expect("a schema");
    let first = compile(0);
    (1..MAX_KEPT).for_each(|number| drop(compile(number)));
    assert!(Arc::ptr_eq(&first, &compile(0)));
    // The first one was used last, so the second one is left out.
    drop(compile(MAX_KEPT));
    assert!(Arc::ptr_eq(&first, &compile(0)));
    let second = compile(1);
    assert!(Arc::ptr_eq(&second, &compile(1)) && !Arc::ptr_eq(&first, &second));
    assert!(matches!(second.validate(&json!({})), SchemaCheck::Wrong(_)));
    let large = json!({"description": "x".repeat(MAX_KEPT_BYTES)});
    let heavy = [json!({"pattern": "^a+$"}), json!({"patternProperties": {"^a+$": {}}})];
    for not_kept in heavy.into_iter().chain([large]) {
        let not_kept = SchemaText::from(not_kept);
        let again = kept.compile(&not_kept).expect("a schema");
        assert!(!Arc::ptr_eq(&again, &kept.compile(&not_kept).expect("a schema")));
    }
    assert!(kept.compile(&json!({"type": 7}).into()).is_err());
}
