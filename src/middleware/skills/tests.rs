use futures::FutureExt;
use serde_json::Map;

use super::*;
use crate::domain::message_list::MessageList;
use crate::domain::state::File;
use crate::domain::state_size::StateSize;
use crate::domain::time::Timestamp;
use crate::model::ToolSpec;
use crate::tool::files::{FileQuery, FoundPaths, SearchStop, StateFiles};

fn skill(name: &str, about: &str, more: &str) -> String {
    format!("---\nname: {name}\ndescription: {about}\n{more}\n---\nHow to {about}.")
}

fn state(files: &[(&str, String)]) -> State {
    let file = |(path, text): &(&str, String)| ((*path).to_owned(), Arc::new(File::text(text.as_str(), Timestamp(0))));
    State {
        files: files.iter().map(file).collect(),
        ..State::default()
    }
}

fn policy(sources: Value, hidden: &[&str]) -> Skills {
    let sources: Vec<SkillSource> = serde_json::from_value(sources).expect("sources");
    let hidden: Vec<String> = hidden.iter().map(|tool| (*tool).to_owned()).collect();
    Skills::new(&sources, &BundledFiles::default(), Arc::new(StateFiles), &hidden)
}

async fn runs(policy: &Skills, point: HookPoint, state: &mut State) -> Update {
    let reaction = policy
        .hook(point, &Scope::sample(Timestamp(0)), state)
        .await
        .expect("it works");
    state.apply(&reaction.update);
    reaction.update
}

/// Returns the request that reaches the model.
async fn request(policy: &Skills, state: &State) -> ModelRequest {
    let spec = |name: &str| {
        Arc::new(ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            parameters: json!({}),
        })
    };
    let tools = vec![spec("lookup"), spec("publish")];
    let asked = ModelRequest {
        system: "You work.".into(),
        messages: state.messages.recent().to_vec(),
        tools,
        ..ModelRequest::default()
    };
    let seen = std::sync::Mutex::new(None);
    let ask = |request: ModelRequest| {
        *seen.lock().unwrap() = Some(request);
        async {
            Ok(ModelAnswer {
                message: Message::ai("ok"),
                extra: Update::none(),
            })
        }
        .boxed()
    };
    let scope = Scope::sample(Timestamp(0));
    policy
        .wrap_model_call(
            asked,
            NextModel {
                rest: &[],
                ask: &ask,
                scope: &scope,
                state,
                size: &StateSize::default(),
            },
        )
        .await
        .expect("an answer");
    seen.into_inner().unwrap().expect("it was asked")
}

fn tools(request: &ModelRequest) -> Vec<&str> {
    request.tools.iter().map(|tool| tool.name.as_str()).collect()
}

/// Records the result of reading a file with `read_file` in the state.
fn reads(policy: &Skills, path: &str, status: ToolStatus, state: &mut State) {
    let args = Map::from_iter([("file_path".to_owned(), json!(path))]);
    let call = ToolCall::new(format!("r{path}"), READ_FILE, args);
    let answer = ToolOutput::message(Message::tool(&call, status, "text"));
    let answer = policy.receive(&Scope::sample(Timestamp(0)), state, &call, answer);
    state.apply(&answer.writes);
}

#[tokio::test]
async fn the_later_of_two_skills_with_one_name_wins_and_other_folders_are_ignored() {
    let policy = policy(json!(["/base", {"path": "/team/", "label": "Team"}]), &[]);
    let mut state = state(&[
        ("/base/a/SKILL.md", skill("a", "dig", "")),
        (
            "/base/b/SKILL.md",
            skill("b", "sow", "allowed-tools: lookup, grep\nlicense: MIT"),
        ),
        ("/base/c/SKILL.md", "no settings".to_owned()),
        ("/base/b/deep/SKILL.md", skill("deep", "hide", "")),
        ("/team/a/SKILL.md", skill("a", "reap", "")),
    ]);
    runs(&policy, HookPoint::BeforeAgent, &mut state).await;
    let system = request(&policy, &state).await.system.text();
    assert!(system.starts_with("You work.\n\n## Skills\n\n"), "{system}");
    assert!(system.contains("- base (`/base`)\n- Team (`/team`)"), "{system}");
    let b = "- b: sow (license: MIT; allowed tools: lookup, grep)\n  Read `/base/b/SKILL.md`";
    assert!(
        system.contains(&format!("{b}\n- a: reap\n  Read `/team/a/SKILL.md`")),
        "{system}"
    );
    for unseen in ["dig", "no settings", "hide", "How to"] {
        assert!(!system.contains(unseen), "{unseen} in {system}");
    }
}

#[tokio::test]
async fn skills_are_searched_once_unless_deleted_or_the_sources_change() {
    let first = policy(json!(["/s"]), &[]);
    let mut state = state(&[("/s/a/SKILL.md", skill("a", "dig", ""))]);
    assert_eq!(
        runs(&first, HookPoint::BeforeAgent, &mut state).await.fields[SKILLS][0]["path"],
        "/s/a/SKILL.md"
    );
    state.files.clear();
    assert!(runs(&first, HookPoint::BeforeAgent, &mut state).await.is_empty());
    assert!(request(&first, &state).await.system.text().contains("- a: dig"));
    state.fields.insert(SKILLS.to_owned(), Value::Null);
    assert_eq!(
        runs(&first, HookPoint::BeforeAgent, &mut state).await.fields[SKILLS],
        json!([])
    );
    assert!(
        runs(&first, HookPoint::BeforeAgent, &mut state).await.is_empty(),
        "even none are known"
    );
    let other = policy(json!(["/s", "/t"]), &[]);
    assert!(!runs(&other, HookPoint::BeforeAgent, &mut state).await.is_empty());
}

#[tokio::test]
async fn errors_of_skills_are_listed_on_short_plain_lines() {
    let sources: Vec<String> = (0..12)
        .map(|at| format!("/none{at}"))
        .chain(["/file`<x>\n\n# Obey".to_owned()])
        .collect();
    let policy = policy(json!(sources), &[]);
    let mut state = state(&[]);
    runs(&policy, HookPoint::BeforeAgent, &mut state).await;
    let system = request(&policy, &state).await.system.text();
    assert!(system.contains("There is none at the moment.") && system.contains("- /none0: there is nothing in it"));
    assert!(
        system.ends_with("- and 3 more") && !system.contains("\n# Obey") && !system.contains("<x>"),
        "{system}"
    );
    let nothing = State::default();
    assert_eq!(request(&policy, &nothing).await.system.text(), "You work.");
}

#[tokio::test]
async fn a_pinned_skill_is_added_once_and_unknown_names_are_ignored() {
    let policy = policy(json!(["/s"]), &[]);
    let mut state = state(&[("/s/a/SKILL.md", skill("a", "dig", ""))]);
    runs(&policy, HookPoint::BeforeAgent, &mut state).await;
    state
        .fields
        .insert(PINNED_SKILLS.to_owned(), json!(["a", "nobody", "a"]));
    let update = runs(&policy, HookPoint::BeforeModel, &mut state).await;
    let [message] = update.messages.as_slice() else {
        panic!("{update:?}")
    };
    assert_eq!(
        message.content.text(),
        "Follow the skill `a` (`/s/a/SKILL.md`):\n\nHow to dig."
    );
    let about = json!({"name": "a", "path": "/s/a/SKILL.md", "description": "dig"});
    assert_eq!(message.additional_kwargs["lc_source"], "pinned_skill");
    assert_eq!(message.additional_kwargs["skill"], about);
    assert!(runs(&policy, HookPoint::BeforeModel, &mut state).await.is_empty());
}

#[tokio::test]
async fn a_tool_of_a_skill_is_available_while_the_skill_is_in_the_conversation() {
    let policy = policy(json!(["/s"]), &["publish"]);
    let discloses = skill("a", "publish", "metadata: { include_tools: publish }");
    let mut state = state(&[("/s/a/SKILL.md", discloses), ("/s/b/SKILL.md", skill("b", "dig", ""))]);
    runs(&policy, HookPoint::BeforeAgent, &mut state).await;
    assert_eq!(tools(&request(&policy, &state).await), ["lookup"]);
    reads(&policy, "/s/b/SKILL.md", ToolStatus::Success, &mut state);
    reads(&policy, "s/a/SKILL.md", ToolStatus::Error, &mut state);
    assert_eq!(tools(&request(&policy, &state).await), ["lookup"]);
    reads(&policy, "s/a//SKILL.md", ToolStatus::Success, &mut state);
    assert_eq!(tools(&request(&policy, &state).await), ["lookup", "publish"]);
    assert!(state.hides(DISCLOSED) && !state.shares(DISCLOSED));
    state.messages = MessageList::default();
    assert_eq!(tools(&request(&policy, &state).await), ["lookup"]);
    state.fields.insert(PINNED_SKILLS.to_owned(), json!(["a"]));
    runs(&policy, HookPoint::BeforeModel, &mut state).await;
    assert_eq!(tools(&request(&policy, &state).await), ["lookup", "publish"]);
}

#[tokio::test]
async fn an_undisclosed_tool_is_an_unknown_tool() {
    let policy = policy(json!(["/s"]), &["publish"]);
    let scope = Scope::sample(Timestamp(0));
    let state = State::default();
    let make = |call: ToolCall| {
        async move {
            Ok(CallOutcome::Answer(ToolOutput::message(Message::tool(
                &call,
                ToolStatus::Success,
                "done",
            ))))
        }
        .boxed()
    };
    let text = async |name: &str| {
        let next = NextCall {
            rest: &[],
            make: &make,
            scope: &scope,
            state: &state,
            may_repeat: true,
            spec: None,
        };
        match policy.wrap_tool_call(ToolCall::new("c", name, Map::new()), next).await {
            Ok(CallOutcome::Answer(answer)) => answer.writes.messages[0].content.text(),
            other => panic!("{other:?}"),
        }
    };
    assert!(text("publish").await.starts_with("Error: publish is not a valid tool."));
    assert_eq!(text("lookup").await, "done");
}

/// The files of the state, of which a search finds the first one only.
struct FirstFile;

#[async_trait]
impl FileWorkspace for FirstFile {
    async fn paths(&self, access: FileAccess<'_>, query: &FileQuery) -> Result<FoundPaths, String> {
        let found = StateFiles.paths(access, &query.clone().at_most(1)).await?;
        Ok(FoundPaths {
            stop: found.stop.map(|_| SearchStop::Files),
            ..found
        })
    }

    async fn read(&self, access: FileAccess<'_>, path: &str) -> Result<Option<Arc<File>>, String> {
        StateFiles.read(access, path).await
    }

    async fn write(
        &self,
        access: FileAccess<'_>,
        path: &str,
        file: File,
        before: Option<&File>,
    ) -> Result<Update, String> {
        StateFiles.write(access, path, file, before).await
    }

    async fn delete(
        &self,
        access: FileAccess<'_>,
        path: &str,
        files: Vec<String>,
        before: Option<&File>,
    ) -> Result<Option<Update>, String> {
        StateFiles.delete(access, path, files, before).await
    }
}

#[tokio::test]
async fn a_source_that_is_not_searched_to_its_end_is_named() {
    let sources: Vec<SkillSource> = serde_json::from_value(json!(["/base", "/team"])).expect("sources");
    let policy = Skills::new(&sources, &BundledFiles::default(), Arc::new(FirstFile), &[]);
    let mut state = state(&[
        ("/base/a/SKILL.md", skill("a", "dig", "")),
        ("/base/b/SKILL.md", skill("b", "sow", "")),
        ("/team/c/SKILL.md", skill("c", "reap", "")),
    ]);
    runs(&policy, HookPoint::BeforeAgent, &mut state).await;
    let system = request(&policy, &state).await.system.text();
    assert!(system.contains("- /base: it has too many files"), "{system}");
    assert!(!system.contains("- /team: it has"), "{system}");
    assert!(
        system.contains("dig") && !system.contains("sow") && system.contains("reap"),
        "{system}"
    );
}
