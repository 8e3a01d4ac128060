use serde_json::json;

use super::*;

fn condition(value: Value) -> ArgumentCondition {
    serde_json::from_value(value).expect("a condition")
}

/// Returns whether the condition may hold and whether it certainly holds.
fn outcome(of: Value, args: &Value) -> [bool; 2] {
    let compiled = condition(of).compile().expect("it compiles");
    let args = args.as_object().expect("arguments");
    [compiled.may_hold(args), compiled.holds(args)]
}

const YES: [bool; 2] = [true, true];
const NO: [bool; 2] = [false, false];
const UNKNOWN: [bool; 2] = [true, false];

#[test]
fn values_are_compared_by_their_worth() {
    let args = json!({"to": "bob", "n": 100, "big": 9_007_199_254_740_993_u64, "list": [1, {"a": 2.0}]});
    assert_eq!(outcome(json!({"to": {"equals": "bob"}}), &args), YES);
    assert_eq!(outcome(json!({"to": {"in": ["al", "bob"]}}), &args), YES);
    assert_eq!(outcome(json!({"to": {"in": ["al"]}}), &args), NO);
    assert_eq!(outcome(json!({"n": {"equals": 100.0}}), &args), YES);
    assert_eq!(outcome(json!({"list": {"equals": [1.0, {"a": 2}]}}), &args), YES);
    assert_eq!(outcome(json!({"big": {"gt": 9_007_199_254_740_992_u64}}), &args), YES);
    assert_eq!(outcome(json!({"n": {"gte": 100, "lt": 100.5}}), &args), YES);
    assert_eq!(outcome(json!({"n": {"gt": 100}}), &args), NO);
    assert_eq!(outcome(json!({"n": {"lte": 99}}), &args), NO);
}

#[test]
fn texts_and_paths_are_matched() {
    let args = json!({"to": "eve@example.org", "file": "/policies/../policies/a.md"});
    assert_eq!(outcome(json!({"to": {"regex": "@example\\.org$"}}), &args), YES);
    assert_eq!(outcome(json!({"to": {"not": {"regex": "@example\\.org$"}}}), &args), NO);
    assert_eq!(
        outcome(
            json!({"file": {"path": "/policies/**"}}),
            &json!({"file": "/policies/a.md"})
        ),
        YES
    );
    assert_eq!(
        outcome(
            json!({"file": {"path": "/policies/**"}}),
            &json!({"file": "/drafts/a.md"})
        ),
        NO
    );
    // A path that leaves the workspace cannot be judged.
    assert_eq!(outcome(json!({"file": {"path": "/policies/**"}}), &args), UNKNOWN);
}

#[test]
fn a_test_that_cannot_be_applied_is_unknown() {
    let args = json!({"amount": "1000", "to": ["a"]});
    assert_eq!(outcome(json!({"amount": {"gt": 100}}), &args), UNKNOWN);
    assert_eq!(outcome(json!({"absent": {"gt": 100}}), &args), UNKNOWN);
    assert_eq!(outcome(json!({"to": {"regex": "b"}}), &args), UNKNOWN);
    assert_eq!(outcome(json!({"to": {"not": {"regex": "b"}}}), &args), UNKNOWN);
    assert_eq!(outcome(json!({"absent": {"exists": true}}), &args), NO);
    assert_eq!(outcome(json!({"absent": {"exists": false}}), &args), YES);
    assert_eq!(outcome(json!({"absent": {"equals": 1}}), &args), NO);
    assert_eq!(
        outcome(json!({"absent": {"gt": 1}, "amount": {"equals": 1}}), &args),
        NO,
        "one is false"
    );
}

#[test]
fn arguments_are_found_by_their_paths() {
    let args =
        json!({"customer": {"country": "NL"}, "a.b": 1, "to": [{"mail": "x@in"}, {"mail": "y@out"}], "none": []});
    assert_eq!(outcome(json!({"customer.country": {"equals": "NL"}}), &args), YES);
    assert_eq!(outcome(json!({"a.b": {"equals": 1}}), &args), YES);
    assert_eq!(outcome(json!({"to.1.mail": {"regex": "out"}}), &args), YES);
    assert_eq!(
        outcome(json!({"to.*.mail": {"not": {"regex": "@in$"}}}), &args),
        YES,
        "one is outside"
    );
    assert_eq!(outcome(json!({"to.*.mail": {"regex": "never"}}), &args), NO);
    let partly = json!({"to": [{"mail": "x@in"}, {}]});
    assert_eq!(
        outcome(json!({"to.*.mail": {"not": {"regex": "@in$"}}}), &partly),
        UNKNOWN,
        "one has none"
    );
    assert_eq!(outcome(json!({"none.*": {"regex": "x"}}), &args), NO);
    assert_eq!(
        outcome(json!({"customer.*": {"regex": "x"}}), &args),
        UNKNOWN,
        "no list"
    );
}

#[test]
fn an_argument_with_a_dot_in_its_name_hides_no_other() {
    let test = json!({"customer.country": {"equals": "NL"}});
    let args = |own: &str, nested: Value| json!({"customer.country": own, "customer": nested});
    assert_eq!(outcome(test.clone(), &args("DE", json!({"country": "NL"}))), UNKNOWN);
    assert_eq!(outcome(test.clone(), &args("NL", json!({"country": "DE"}))), UNKNOWN);
    assert_eq!(outcome(test.clone(), &args("NL", json!({"country": "NL"}))), YES);
    assert_eq!(outcome(test.clone(), &args("DE", json!({"country": "DE"}))), NO);
    assert_eq!(outcome(test, &json!({"customer.country": "DE"})), NO);
}

#[test]
fn of_several_tables_one_is_enough() {
    let either = json!([{"n": {"gt": 10}}, {"to": {"equals": "eve"}}]);
    assert_eq!(outcome(either.clone(), &json!({"n": 1, "to": "eve"})), YES);
    assert_eq!(outcome(either.clone(), &json!({"n": 1, "to": "bob"})), NO);
    assert_eq!(outcome(either, &json!({"to": "bob"})), UNKNOWN);
}

#[test]
fn the_same_arguments_are_the_same() {
    let args = json!({"to": "bob", "n": 1});
    let same = ArgumentCondition::same_as(args.as_object().expect("arguments"));
    let compiled = same.compile().expect("it compiles");
    assert!(compiled.holds(json!({"n": 1.0, "to": "bob"}).as_object().expect("arguments")));
    assert!(!compiled.holds(json!({"n": 2, "to": "bob"}).as_object().expect("arguments")));
}

#[test]
fn invalid_conditions_name_the_place() {
    let problem = |of: Value| {
        let invalid = condition(of).compile().expect_err("it is invalid");
        format!("{}: {}", invalid.place.join("."), invalid.reason)
    };
    assert_eq!(
        problem(json!({"to": {"regex": "("}})),
        "to.regex: is no regular expression: unclosed group"
    );
    assert_eq!(problem(json!([{"to": {"path": ""}}])), "0.to.path: it is empty");
    assert_eq!(
        problem(json!({"to": {"not": {"not": {"equals": 1}}}})),
        "to.not.not: must not be inside another `not`"
    );
    assert!(problem(json!({"to": {}})).starts_with("to: has no test"));
    assert!(problem(json!([])).contains("1 to 32 tables"));
    assert!(problem(json!({})).contains("1 to 32 arguments"));
    let long = "x".repeat(MAX_REGEX_BYTES + 1);
    assert!(problem(json!({"to": {"regex": long}})).contains("longer than"));
    assert_eq!(
        problem(json!({"to": {"regex": "(\\w{900}){900}"}})),
        "to.regex: is too large once it is compiled"
    );
    let many: Vec<usize> = (0..=MOST).collect();
    assert!(problem(json!({"to": {"in": many}})).contains("at most 32"));
    assert!(serde_json::from_value::<ArgumentCondition>(json!({"to": {"greater": 1}})).is_err());
}
