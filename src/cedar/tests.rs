use cedar_policy::{Authorizer, Context, Decision, Entity, PolicySet, Request, RestrictedExpression, Schema};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::condition::{uid, user_id};
use super::policies::CedarPolicies;
use super::*;
use crate::domain::access::{Action, Ownership, ResourceFacts};
use crate::domain::identity::{Credential, Identity, Tenant, UserId, UserRole};
use crate::domain::ruling::{RowCondition, Ruling};

fn file(text: &str) -> PolicyFile {
    PolicyFile {
        name: "p.cedar".to_owned(),
        text: text.to_owned(),
    }
}

fn policies(text: &str) -> CedarPolicies {
    match CedarPolicies::read(&[file(text)]) {
        Ok(read) => read.policies,
        Err(mistakes) => panic!("{text}: {mistakes:#?}"),
    }
}

/// Returns the mistakes of a text, each with its place.
fn mistakes(text: &str) -> String {
    let found = match read(&[file(text)]) {
        Ok(read) => read.warnings,
        Err(mistakes) => mistakes,
    };
    let shown = found.into_iter().map(|mistake| {
        let at = mistake.offset.map_or(String::new(), |offset| format!("{offset}: "));
        format!("{at}{}", mistake.message)
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn caller(user: &str, roles: &[UserRole]) -> Identity {
    Identity {
        tenant: Tenant::stored("acme".to_owned()),
        user: UserId::stored(user.to_owned()),
        roles: roles.to_vec(),
        claims: Map::from_iter([("department".to_owned(), json!("sales"))]),
        credential: Credential::Hook,
        ..Identity::unauthenticated()
    }
}

fn owned_by(user: &str) -> RowCondition {
    RowCondition::OwnedBy(UserId::stored(user.to_owned()))
}

#[test]
fn a_policy_about_the_caller_holds_for_all_resources() {
    let policies = policies(
        "forbid(principal, action in Action::\"changes\", resource)\n\
         when { principal.roles.contains(\"user\") && principal.hasTag(\"department\") && principal.getTag(\"department\") == \"sales\" };",
    );
    let user = caller("ann", &[UserRole::User]);
    assert_eq!(
        policies.ruling(&user, Action::ThreadsDelete).forbids,
        RowCondition::ALWAYS
    );
    assert_eq!(policies.ruling(&user, Action::ThreadsRead), Ruling::NONE);
    let admin = caller("root", &[UserRole::Admin]);
    assert_eq!(policies.ruling(&admin, Action::ThreadsDelete), Ruling::NONE);
}

#[test]
fn a_policy_about_the_owner_is_a_condition_on_rows() {
    let policies = policies(
        "permit(principal == User::\"acme/ann\", action == Action::\"threads:read\", resource)\n\
         when { resource.owner == User::\"acme/bob\" };\n\
         forbid(principal in Tenant::\"acme\", action in [Action::\"threads:delete\"], resource)\n\
         unless { principal == resource.owner };",
    );
    let ann = caller("ann", &[UserRole::User]);
    let read = policies.ruling(&ann, Action::ThreadsRead);
    assert_eq!(read.permits, owned_by("bob"));
    assert_eq!(read.forbids, RowCondition::NEVER);
    assert_eq!(
        policies.ruling(&ann, Action::ThreadsDelete).forbids,
        owned_by("ann").negated()
    );
    let bob = caller("bob", &[UserRole::User]);
    assert_eq!(policies.ruling(&bob, Action::ThreadsRead), Ruling::NONE);
    let stranger = Identity {
        tenant: Tenant::stored("other".to_owned()),
        ..ann
    };
    assert_eq!(policies.ruling(&stranger, Action::ThreadsRead), Ruling::NONE);
    assert_eq!(policies.ruling(&stranger, Action::ThreadsDelete), Ruling::NONE);
}

#[test]
fn a_user_of_another_tenant_owns_nothing() {
    let policies = policies(
        "permit(principal, action == Action::\"threads:read\", resource) when { resource.owner == User::\"other/bob\" };",
    );
    assert_eq!(
        policies.ruling(&caller("ann", &[]), Action::ThreadsRead).permits,
        RowCondition::NEVER
    );
}

/// Policies with every form of condition on resources.
const FORMS: [&str; 9] = [
    "resource.owner == principal",
    "resource.owner != User::\"acme/bob\"",
    "resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\"",
    "!(resource.hasTag(\"level\") && \"secret\" == resource.getTag(\"level\"))",
    "resource.hasTag(\"level\") && (resource.getTag(\"level\") == \"a\" || resource.getTag(\"level\") == \"secret\")",
    "principal.roles.contains(\"user\") && (resource.owner == principal || resource is Thread && resource.owner == User::\"acme/bob\")",
    "if resource.owner == principal then principal.tenant == \"acme\" else principal.roles.contains(\"admin\")",
    "if principal.roles.contains(\"admin\") then true else resource.owner == principal",
    "resource is Assistant || principal.tenant like \"ac*\" && resource.owner == principal",
];

/// Cedar itself, with some policies.
struct PlainCedar {
    policies: PolicySet,
    schema: Schema,
}

impl PlainCedar {
    fn of(policies: &str) -> Self {
        Self {
            policies: policies.parse().expect("policies"),
            schema: Schema::from_cedarschema_str(&schema::text()).expect("the schema").0,
        }
    }

    /// Returns whether Cedar allows a caller to change a thread.
    fn decides(&self, identity: &Identity, owner: &str, metadata: &Map<String, Value>) -> bool {
        let texts = |texts: Vec<String>| {
            RestrictedExpression::new_set(
                texts
                    .into_iter()
                    .map(RestrictedExpression::new_string)
                    .collect::<Vec<_>>(),
            )
        };
        let tagged = |tags: &Map<String, Value>| {
            let tags = tags.iter().map(|(key, value)| {
                let text = value.as_str().expect("a text").to_owned();
                (key.clone(), RestrictedExpression::new_string(text))
            });
            tags.collect::<Vec<_>>()
        };
        let tenant = identity.tenant.as_str();
        let user = uid("User", &user_id(identity)).expect("an id");
        let attributes = [
            ("tenant", RestrictedExpression::new_string(tenant.to_owned())),
            (
                "roles",
                texts(identity.roles.iter().map(|role| role.word().to_owned()).collect()),
            ),
            ("permissions", texts(vec![])),
        ];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value));
        let within = [uid("Tenant", tenant).expect("an id")];
        let caller = Entity::new_with_tags(user.clone(), attributes, within, tagged(&identity.claims)).expect("a user");
        let thread = uid("Thread", "t").expect("an id");
        let owner = RestrictedExpression::new_entity_uid(uid("User", &format!("{tenant}/{owner}")).expect("an id"));
        let row = Entity::new_with_tags(thread.clone(), [("owner".to_owned(), owner)], [], tagged(metadata));
        let entities = self.schema.action_entities().expect("actions");
        let entities = entities
            .add_entities([caller, row.expect("a thread")], None)
            .expect("entities");
        let action = uid("Action", Action::ThreadsUpdate.word()).expect("an id");
        let request = Request::new(user, action, thread, Context::empty(), Some(&self.schema));
        let response = Authorizer::new().is_authorized(&request.expect("a request"), &self.policies, &entities);
        assert_eq!(response.diagnostics().errors().count(), 0);
        response.decision() == Decision::Allow
    }
}

/// Returns the metadata of some threads.
fn some_metadata() -> Vec<Map<String, Value>> {
    let all = [
        json!({}),
        json!({"level": "secret"}),
        json!({"level": "a"}),
        json!({"level": "a", "other": "secret"}),
    ];
    all.iter().filter_map(Value::as_object).cloned().collect()
}

/// Compares the ruling with Cedar's decisions about the threads of some owners. Returns how many were allowed and denied.
fn compare(text: &str, identity: &Identity) -> [usize; 2] {
    let ruling = policies(text).ruling(identity, Action::ThreadsUpdate);
    let cedar = PlainCedar::of(text);
    let mut counts = [0, 0];
    for owner in ["ann", "bob", "mia"] {
        for metadata in some_metadata() {
            let ownership = Ownership {
                tenant: identity.tenant.clone(),
                owner: UserId::stored(owner.to_owned()),
            };
            let is_met = |condition: &RowCondition| condition.is_met(&ownership, &metadata, None);
            let is_allowed = is_met(&ruling.permits) && !is_met(&ruling.forbids);
            assert_eq!(
                is_allowed,
                cedar.decides(identity, owner, &metadata),
                "{text} {owner} {metadata:?}"
            );
            counts[usize::from(is_allowed)] += 1;
        }
    }
    counts
}

fn policy(effect: &str, condition: &str) -> String {
    format!("{effect}(principal, action == Action::\"threads:update\", resource) when {{ {condition} }};\n")
}

#[test]
fn the_condition_on_rows_decides_like_cedar() {
    let mut sum = [0, 0];
    for form in FORMS {
        for roles in [vec![UserRole::User], vec![UserRole::Admin], vec![]] {
            let counts = compare(&policy("permit", form), &caller("ann", &roles));
            sum = [sum[0] + counts[0], sum[1] + counts[1]];
        }
    }
    assert!(sum.iter().all(|count| *count > 50), "{sum:?}");
}

/// A condition of any form.
fn condition() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "true",
        "resource is Thread",
        "resource is Cron",
        "resource.owner == principal",
        "resource.owner == User::\"acme/bob\"",
        "User::\"other/mia\" != resource.owner",
        "resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\"",
        "resource.hasTag(\"level\") && (resource.getTag(\"level\") == \"a\" || resource.getTag(\"level\") == \"b\")",
        "resource.hasTag(\"other\") && \"secret\" == resource.getTag(\"other\")",
        "principal.roles.contains(\"user\")",
        "principal in Tenant::\"acme\"",
        "principal.hasTag(\"department\") && principal.getTag(\"department\") like \"s*\"",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(3, 12, 3, |inner| {
        let two = [inner.clone(), inner.clone()];
        let three = [inner.clone(), inner.clone(), inner.clone()];
        prop_oneof![
            inner.prop_map(|one| format!("!({one})")),
            two.clone().prop_map(|[left, right]| format!("({left}) && ({right})")),
            two.prop_map(|[left, right]| format!("({left}) || ({right})")),
            three.prop_map(|[test, then, other]| format!("(if {test} then {then} else {other})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn generated_policies_decide_like_cedar(
        permit in condition(),
        forbid in condition(),
        role in prop::sample::select(vec![UserRole::User, UserRole::Admin]),
    ) {
        let text = policy("permit", &permit) + &policy("forbid", &forbid);
        compare(&text, &caller("ann", &[role]));
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    let unknown = "permit(principal, action == Action::\"threads:fly\", resource);";
    let found = mistakes(unknown);
    assert!(found.contains("threads:fly") && found.starts_with("28: "), "{found}");
    let found = mistakes("permit(principal, action, resource) when { principal.role == \"x\" };");
    assert!(found.contains("role"), "{found}");
    let found = mistakes("permit(principal, action resource);");
    assert!(found.starts_with("25: "), "{found}");
    let found = mistakes("permit(principal == ?principal, action, resource);");
    assert!(found.contains("template"), "{found}");
    let twice = "@id(\"one\") permit(principal, action == Action::\"threads:read\", resource);".repeat(2);
    assert!(mistakes(&twice).contains("two policies have the `@id` \"one\""));
}

#[test]
fn questions_that_cannot_filter_searches_are_refused() {
    for condition in [
        "resource.owner.roles.contains(\"admin\")",
        "resource.owner in Tenant::\"acme\"",
        "resource.hasTag(\"level\")",
        "resource.hasTag(\"level\") && resource.getTag(\"level\") != \"a\"",
        "resource.hasTag(\"level\") && resource.getTag(\"level\") like \"a*\"",
        "resource == Thread::\"t\"",
        "[resource.owner].contains(principal)",
    ] {
        let text = format!("forbid(principal, action == Action::\"threads:read\", resource) when {{ {condition} }};");
        let found = mistakes(&text);
        assert!(found.contains("searches cannot be filtered by"), "{condition}: {found}");
    }
    let found = mistakes("forbid(principal, action == Action::\"threads:read\", resource == Thread::\"t\");");
    assert!(found.contains("names a single resource"), "{found}");
}

#[test]
fn a_policy_that_cannot_be_evaluated_fails_closed() {
    let overflow = "9223372036854775807 + 1 > 0";
    for effect in ["permit", "forbid"] {
        let text = format!("{effect}(principal, action == Action::\"threads:read\", resource) when {{ {overflow} }};");
        let ruling = policies(&text).ruling(&caller("ann", &[]), Action::ThreadsRead);
        assert_eq!(ruling.permits, RowCondition::NEVER);
        assert_eq!(ruling.forbids, RowCondition::Is(effect == "forbid"));
    }
}

#[test]
fn the_policies_that_forbid_are_named() {
    let policies = policies(
        "@id(\"no-secrets\") forbid(principal, action == Action::\"threads:read\", resource)\n\
         when { resource.hasTag(\"level\") && resource.getTag(\"level\") == \"secret\" };\n\
         forbid(principal, action == Action::\"threads:read\", resource) when { resource.owner != principal };\n\
         @id(\"all\") permit(principal, action == Action::\"threads:read\", resource);",
    );
    let ann = caller("ann", &[]);
    let facts = |owner: &str, level: &str| ResourceFacts {
        ownership: Ownership {
            tenant: ann.tenant.clone(),
            owner: UserId::stored(owner.to_owned()),
        },
        metadata: Map::from_iter([("level".to_owned(), json!(level))]),
        ..ResourceFacts::default()
    };
    let forbidding = |owner: &str, level: &str| policies.forbidding(&ann, Action::ThreadsRead, &facts(owner, level));
    assert_eq!(forbidding("ann", "open"), [""; 0]);
    assert_eq!(forbidding("ann", "secret"), ["no-secrets"]);
    assert_eq!(forbidding("bob", "secret"), ["no-secrets", "p.cedar#policy1"]);
}

fn read_policy(condition: &str) -> String {
    format!("permit(principal, action == Action::\"threads:read\", resource) when {{ {condition} }};")
}

#[test]
fn policies_have_limits() {
    let many = "permit(principal, action == Action::\"threads:read\", resource);\n".repeat(257);
    assert!(
        mistakes(&many).contains("at most 256 are allowed"),
        "{}",
        mistakes(&many)
    );
    let large = format!("// {}\n", "x".repeat(MAX_FILE_BYTES));
    assert!(mistakes(&large).contains("is larger than"));
    let long = vec!["resource.owner == principal"; 65].join(" || ");
    let found = mistakes(&read_policy(&long));
    assert!(found.contains("has more than 64 parts"), "{found}");
    let owned = vec!["resource.owner == principal"; 60].join(" || ");
    let found = mistakes(&read_policy(&owned).repeat(20));
    assert!(found.contains("all policies have more than 512 parts"), "{found}");
    let found = mistakes(&format!("@id(\"{}\") {}", "x".repeat(101), read_policy("true")));
    assert!(found.contains("longer than 100 bytes"), "{found}");
    let found = mistakes(&read_policy("resource.owner == User::\"acme/\\0\""));
    assert!(found.contains("U+0000"), "{found}");
}

#[test]
fn conditions_that_grow_with_each_if_are_refused() {
    let own = "resource.owner == principal";
    let nested = (0..20).fold(own.to_owned(), |test, _| {
        format!("(if {test} then {own} else !({own}))")
    });
    let found = mistakes(&read_policy(&nested));
    assert!(found.contains("those behind an `if` count twice"), "{found}");
}

#[test]
fn no_text_exhausts_the_stack() {
    let deepest = 100_000;
    for text in [
        format!("{}true{}", "(".repeat(deepest), ")".repeat(deepest)),
        vec!["true"; deepest / 4].join(" && "),
        format!("{}true", "if true then true else ".repeat(5_000)),
        "(".repeat(deepest),
    ] {
        let found = mistakes(&read_policy(&text));
        assert!(found.contains("nests deeper than 256 levels"), "{found}");
    }
}

/// Returns the deepest conditions that are read, in several forms: of brackets, chains and negations.
fn deepest(test: &str) -> Vec<String> {
    let forms: [fn(&str, usize) -> String; 4] = [
        |test, levels| format!("{}{test}{}", "(".repeat(levels), ")".repeat(levels)),
        |test, levels| vec![test; levels].join(" && "),
        |test, levels| format!("{}{test}{}", "(true || ".repeat(levels / 2), ")".repeat(levels / 2)),
        |test, levels| format!("{}{test}", format!("if {test} then {test} else ").repeat(levels / 5)),
    ];
    let is_read = |condition: &String| nesting::first_too_deep(&read_policy(condition)).is_none();
    let largest = |form: &fn(&str, usize) -> String| {
        let mut read = (1..300).rev().map(|levels| form(test, levels)).filter(is_read);
        read.next().expect("a condition that is read")
    };
    forms.iter().map(largest).collect()
}

#[test]
fn the_deepest_accepted_text_is_read_without_exhausting_the_stack() {
    for test in ["principal.tenant == \"acme\"", "resource.owner == principal"] {
        for condition in deepest(test) {
            let found = mistakes(&read_policy(&condition));
            let is_refused_in_words =
                found.is_empty() || found.contains("more than 64 parts") || found.contains("32 levels");
            assert!(is_refused_in_words, "{condition}: {found}");
        }
    }
}

#[test]
fn the_deepest_accepted_condition_is_evaluated_on_the_stack_of_a_worker() {
    let chain = vec!["principal.tenant == \"acme\""; 28].join(" && ");
    let brackets = (0..14).fold("true".to_owned(), |inner, _| format!("!(false || {inner})"));
    for condition in [chain, brackets] {
        let read = read(&[file(&read_policy(&condition))]).expect("policies");
        let policies = read.policies;
        let ann = caller("ann", &[]);
        let evaluated = std::thread::scope(|scope| {
            let small = std::thread::Builder::new().stack_size(1024 * 1024);
            let thread = small.spawn_scoped(scope, || policies.ruling(&ann, Action::ThreadsRead));
            thread.expect("a thread").join().expect("a ruling")
        });
        assert_eq!(evaluated.permits, RowCondition::ALWAYS, "{condition}");
    }
}
