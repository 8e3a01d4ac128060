//! No message poisons a thread: content that a model cannot take is left out of requests, and named there.

use serde_json::{Value, json};

use crate::support::provider::Turn;
use crate::support::{Human, TestServer, on_both_engines, transcript};

/// Returns a message with these blocks.
fn message(blocks: &[Value]) -> Value {
    json!({"messages": [{"role": "user", "content": blocks}]})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn image() -> Value {
    json!({"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png", "filename": "photo.png"})
}

fn report() -> Value {
    json!({"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf", "filename": "report.pdf"})
}

/// Sends these blocks and waits for the end of the run; returns its status.
async fn sends(human: &Human, blocks: &[Value]) -> String {
    let run = human.starts(json!({"input": message(blocks)})).await;
    run.finishes().await;
    run.status().await
}

/// Returns the bodies of the requests to the provider.
fn bodies(server: &TestServer) -> Vec<String> {
    server.models.asked().into_iter().map(|asked| asked.body).collect()
}

on_both_engines! {
    content_that_no_provider_accepts_becomes_a_text_that_names_it,
    content_that_is_in_a_thread_already_becomes_a_text,
    an_empty_file_becomes_a_text_that_names_it,
    media_that_the_provider_refuses_are_left_out_at_once_and_from_then_on,
    media_that_the_provider_has_taken_are_not_left_out,
    media_that_the_profile_of_a_model_denies_are_never_sent,
    a_refusal_that_is_not_about_content_is_not_repeated,
    a_request_that_is_refused_without_its_media_fails_as_before,
    a_video_in_the_result_of_a_tool_is_named,
    a_file_in_the_result_of_a_tool_is_shown_unless_the_provider_refuses_it,
    files_of_earlier_results_are_left_out_when_a_request_is_refused,
    a_message_without_blocks_is_sent_as_an_empty_one,
    a_result_without_blocks_is_sent_as_an_empty_one,
    a_long_message_is_shown_with_its_beginning_and_its_end,
    the_file_of_a_long_message_has_the_text_of_the_message_that_took_its_place,
    the_length_of_messages_that_are_shown_whole_is_a_setting,
}

async fn content_that_no_provider_accepts_becomes_a_text_that_names_it(server: TestServer) {
    let office = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
    let blocks = [
        text("look"),
        json!({"type": "video", "base64": "AAAA", "mime_type": "video/mp4", "filename": "clip.mp4"}),
        json!({"type": "file", "base64": "AAAA", "mime_type": office, "filename": "letter.docx"}),
        json!({"type": "hologram", "data": "x"}),
    ];
    for agent in ["openai", "anthropic", "google_genai", "ollama"] {
        let alice = server.human(agent).await;
        let before = bodies(&server).len();
        server
            .models
            .will([Turn::Says("I see nothing"), Turn::Says("still nothing")]);
        assert_eq!(sends(&alice, &blocks).await, "success", "{agent}");
        alice.says("really?").await;
        let asked = bodies(&server).split_off(before);
        assert!(asked.len() >= 2, "{agent}: {asked:?}");
        for body in &asked {
            for name in ["clip.mp4", "video/mp4", "letter.docx", office, "hologram"] {
                assert!(body.contains(name), "{agent}: {name} is not in {body}");
            }
            assert!(!body.contains("AAAA"), "{agent}: {body}");
        }
        let kept = alice.state().await["values"]["messages"][0]["content"].clone();
        assert_eq!(kept, json!(blocks), "clients read what was sent");
    }
}

async fn content_that_is_in_a_thread_already_becomes_a_text(server: TestServer) {
    let client = server.client();
    let video = json!({"type": "video", "base64": "AAAA", "mime_type": "video/mp4"});
    // No agent is named that could be asked.
    let steps = json!([{"updates": [{"values": message(&[text("see"), video]), "as_node": "__input__"}]}]);
    let thread = client.post("/threads", json!({"supersteps": steps})).await.ok();
    let alice = server.human("openai").await.on(thread["thread_id"].as_str().unwrap());
    server.models.will([Turn::Says("I see")]);
    assert_eq!(transcript(&alice.says("well?").await).last().unwrap(), "ai: I see");
    assert!(bodies(&server)[0].contains("video/mp4"));
    assert!(!bodies(&server)[0].contains("AAAA"));
}

async fn an_empty_file_becomes_a_text_that_names_it(server: TestServer) {
    let blank = json!({"type": "text", "media_type": "text/plain", "data": "\n"});
    let blocks = [
        text("look"),
        json!({"type": "file", "base64": "", "mime_type": "application/pdf", "filename": "letter.pdf"}),
        json!({"type": "file", "text": "", "mime_type": "text/plain", "filename": "notes.txt"}),
        json!({"type": "document", "source": blank, "title": "draft.txt"}),
        json!({"type": "image", "url": "data:image/png;base64,", "filename": "photo.png"}),
        json!({"type": "text-plain", "text": "\n", "mime_type": "text/plain", "title": "plain.txt"}),
    ];
    for agent in ["openai", "anthropic", "google_genai", "ollama"] {
        let alice = server.human(agent).await;
        server.models.will([Turn::Says("they are empty")]);
        assert_eq!(sends(&alice, &blocks).await, "success", "{agent}");
        let asked = bodies(&server).pop().expect("a request");
        for (kind, name) in [
            ("file", "letter.pdf"),
            ("file", "notes.txt"),
            ("document", "draft.txt"),
            ("image", "photo.png"),
            ("text-plain", "plain.txt"),
        ] {
            let named = format!("[The content of type `{kind}` \\\"{name}\\\" (");
            assert!(asked.contains(&named), "{agent}: {name} is not named in {asked}");
            let why = format!("an empty content block of type `{kind}` cannot be sent to a model");
            assert!(asked.contains(&why), "{agent}: {asked}");
        }
    }
}

async fn media_that_the_provider_refuses_are_left_out_at_once_and_from_then_on(server: TestServer) {
    for agent in ["openai", "anthropic"] {
        for status in [400, 413, 415, 422] {
            let alice = server.human(agent).await;
            let before = bodies(&server).len();
            server
                .models
                .will([Turn::Refuses(status, None), Turn::Says("no photo"), Turn::Says("none")]);
            assert_eq!(
                sends(&alice, &[text("what is this?"), image()]).await,
                "success",
                "{status}"
            );
            server.is_stopped_and_started_again().await;
            alice.says("and now?").await;
            let asked = bodies(&server).split_off(before);
            let has_image: Vec<bool> = asked.iter().map(|body| body.contains("iVBORw0KGgo=")).collect();
            assert_eq!(has_image, [true, false, false], "{agent} {status}");
            assert!(asked[1].contains("photo.png"), "{}", asked[1]);
            assert!(
                asked[1].contains("the provider of the model refused it"),
                "{}",
                asked[1]
            );
            let state = alice.state().await["values"].clone();
            assert_eq!(state["messages"][0]["content"][1], image());
            assert_eq!(state["messages"][1]["content"], "no photo");
            assert_eq!(state["_refused_content"], Value::Null, "it is private");
            // The two requests are one step.
            assert_eq!(alice.history().await.len(), 6, "{agent} {status}");
        }
    }
}

async fn media_that_the_provider_has_taken_are_not_left_out(server: TestServer) {
    let alice = server.human("openai").await;
    server
        .models
        .will([Turn::Says("a photo"), Turn::Refuses(400, None), Turn::Says("one photo")]);
    sends(&alice, &[text("what is this?"), image()]).await;
    let other = json!({"type": "image", "base64": "R0lGODlh", "mime_type": "image/gif"});
    assert_eq!(sends(&alice, &[text("and this?"), other]).await, "success");
    let asked = bodies(&server);
    assert_eq!(asked.len(), 3);
    assert!(asked[2].contains("iVBORw0KGgo="), "{}", asked[2]);
    assert!(!asked[2].contains("R0lGODlh"), "{}", asked[2]);
}

async fn media_that_the_profile_of_a_model_denies_are_never_sent(server: TestServer) {
    let configuration = "[profiles.\"fake_openai:m-1\"]\nimage_inputs = false\n\
         [agents.blind]\nmodel = \"fake_openai:m-1\"\n\
         [agents.helped]\nmodel = [\"fake_openai:m-1\", \"fake_openai:m-2\"]\n";
    server.is_configured_with(configuration).await;
    for (agent, is_shown) in [("blind", false), ("helped", true)] {
        let alice = server.human(agent).await;
        let before = bodies(&server).len();
        server.models.will([Turn::Says("a picture")]);
        assert_eq!(
            sends(&alice, &[text("what is this?"), image()]).await,
            "success",
            "{agent}"
        );
        let asked = bodies(&server).split_off(before);
        assert_eq!(asked.len(), 1, "{agent}: no request is refused first");
        assert_eq!(asked[0].contains("iVBORw0KGgo="), is_shown, "{}", asked[0]);
        assert_ne!(asked[0].contains("image_inputs = false"), is_shown, "{}", asked[0]);
        let kept = alice.state().await["values"]["messages"][0]["content"].clone();
        assert_eq!(kept[1], image(), "{agent}");
    }
}

async fn a_refusal_that_is_not_about_content_is_not_repeated(server: TestServer) {
    for status in [401, 403, 404] {
        let alice = server.human("openai").await;
        let before = bodies(&server).len();
        server.models.will([Turn::Refuses(status, None)]);
        assert_eq!(sends(&alice, &[text("what is this?"), image()]).await, "error");
        assert_eq!(bodies(&server).len(), before + 1, "{status}");
    }
}

async fn a_request_that_is_refused_without_its_media_fails_as_before(server: TestServer) {
    let alice = server.human("openai").await;
    server.models.will([Turn::Refuses(400, None), Turn::Refuses(400, None)]);
    assert_eq!(sends(&alice, &[text("what is this?"), image()]).await, "error");
    assert_eq!(bodies(&server).len(), 2);
    let error = alice.record().await["error"].to_string();
    assert!(error.contains("ModelRefusedError"), "{error}");
    server.models.will([Turn::Says("a photo")]);
    alice.says("try again").await;
    assert!(
        bodies(&server)[2].contains("iVBORw0KGgo="),
        "nothing is known to be wrong with it"
    );
}

/// Writes a call of a tool into the conversation, whose result has these blocks.
async fn has_found(human: &Human, blocks: &[Value]) {
    let call = json!({"name": "lookup", "args": {}, "id": "c1", "type": "tool_call"});
    let messages = json!([{"role": "user", "content": "find it"}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": blocks, "tool_call_id": "c1"}]);
    let body = json!({"values": {"messages": messages}, "as_node": "tools"});
    human.client().post(&human.path("/state"), body).await.ok();
}

async fn a_video_in_the_result_of_a_tool_is_named(server: TestServer) {
    let alice = server.human("openai").await;
    let clip = json!({"type": "video", "base64": "AAAAHGZ0", "mime_type": "video/mp4", "filename": "clip.mp4"});
    has_found(&alice, &[text("found"), clip]).await;
    server.models.will([Turn::Says("a clip")]);
    alice.starts(json!({"input": null})).await.finishes().await;
    let asked = &bodies(&server)[0];
    assert!(asked.contains("clip.mp4") && !asked.contains("AAAAHGZ0"), "{asked}");
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: a clip");
}

async fn a_file_in_the_result_of_a_tool_is_shown_unless_the_provider_refuses_it(server: TestServer) {
    for agent in ["openai", "anthropic", "google_genai"] {
        for is_refused in [false, true] {
            let alice = server.human(agent).await;
            has_found(&alice, &[text("found"), report()]).await;
            let before = bodies(&server).len();
            let refusal = is_refused.then_some(Turn::Refuses(400, None));
            let answers = [Turn::Says("a report"), Turn::Says("as I said")];
            server.models.will(refusal.into_iter().chain(answers));
            alice.starts(json!({"input": null})).await.finishes().await;
            alice.says("what is it?").await;
            let asked = bodies(&server).split_off(before);
            let has_file: Vec<bool> = asked.iter().map(|body| body.contains("JVBERi0=")).collect();
            let expected: &[bool] = if is_refused {
                &[true, false, false]
            } else {
                &[true, true]
            };
            assert_eq!(has_file, expected, "{agent}");
            assert!(
                asked.iter().all(|body| body.contains("report.pdf")),
                "{agent}: {asked:?}"
            );
            assert_eq!(alice.transcript().await.last().unwrap(), "ai: as I said", "{agent}");
        }
    }
}

async fn files_of_earlier_results_are_left_out_when_a_request_is_refused(server: TestServer) {
    let alice = server.human("openai").await;
    has_found(&alice, &[report()]).await;
    server.models.will([
        Turn::Says("a report"),
        Turn::Refuses(400, None),
        Turn::Refuses(400, None),
        Turn::Says("as I said"),
        Turn::Says("goodbye"),
    ]);
    alice.starts(json!({"input": null})).await.finishes().await;
    assert_eq!(sends(&alice, &[text("and this?"), image()]).await, "success");
    alice.says("thanks").await;
    let asked = bodies(&server);
    let has = |media: &str| asked.iter().map(|body| body.contains(media)).collect::<Vec<bool>>();
    // New media are left out first.
    assert_eq!(has("iVBORw0KGgo="), [false, true, false, false, false]);
    assert_eq!(has("JVBERi0="), [true, true, true, false, false]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: goodbye");
}

async fn a_message_without_blocks_is_sent_as_an_empty_one(server: TestServer) {
    for agent in ["openai", "anthropic", "google_genai", "ollama"] {
        let alice = server.human(agent).await;
        server
            .models
            .will([Turn::Says("hello"), Turn::Says("what is it?"), Turn::Says("I see")]);
        alice.says("hello").await;
        assert_eq!(sends(&alice, &[]).await, "success", "{agent}");
        let asked = bodies(&server).pop().expect("a request");
        assert!(asked.contains("(empty message)"), "{agent}: {asked}");
        assert_eq!(
            transcript(&alice.says("this").await).last().unwrap(),
            "ai: I see",
            "{agent}"
        );
    }
}

async fn a_result_without_blocks_is_sent_as_an_empty_one(server: TestServer) {
    for agent in ["openai", "anthropic", "google_genai", "ollama"] {
        let alice = server.human(agent).await;
        let call = json!({"name": "lookup", "args": {}, "id": "c1", "type": "tool_call"});
        let messages = json!([{"role": "user", "content": "find it"}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": [], "tool_call_id": "c1"}]);
        let body = json!({"values": {"messages": messages}, "as_node": "tools"});
        alice.client().post(&alice.path("/state"), body).await.ok();
        server.models.will([Turn::Says("nothing")]);
        alice.starts(json!({"input": null})).await.finishes().await;
        assert_eq!(alice.transcript().await.last().unwrap(), "ai: nothing", "{agent}");
        let asked = bodies(&server).pop().expect("a request");
        assert!(asked.contains("(no tool output)"), "{agent}: {asked}");
    }
}

async fn a_long_message_is_shown_with_its_beginning_and_its_end(server: TestServer) {
    let alice = server.human("openai").await;
    let long = format!("BEGIN{}END", "x".repeat(210_000));
    server
        .models
        .will([Turn::Says("that is long"), Turn::Says("as before")]);
    alice.says(&long).await;
    alice.says("and?").await;
    let requests = bodies(&server);
    assert_eq!(requests.len(), 2);
    for body in requests {
        assert!(body.len() < 20_000, "{} bytes", body.len());
        assert!(body.contains("BEGIN") && body.contains("xEND"), "{body}");
        assert!(body.contains("/large_messages/"), "{body}");
    }
    let values = alice.state().await["values"].clone();
    assert_eq!(
        values["messages"][0]["content"],
        json!(long),
        "the state keeps the whole text"
    );
    let files = values["files"].as_object().unwrap();
    let [(path, file)] = &files.iter().collect::<Vec<_>>()[..] else {
        panic!("not one file: {:?}", files.keys())
    };
    assert!(path.starts_with("/large_messages/"), "{path}");
    assert_eq!(file["content"], json!(long));
}

async fn the_file_of_a_long_message_has_the_text_of_the_message_that_took_its_place(server: TestServer) {
    let alice = server.human("openai").await;
    let texts = ["a", "b"].map(|letter| letter.repeat(210_000));
    for text in &texts {
        server.models.will([Turn::Says("read")]);
        let long = json!({"id": "m1", "role": "user", "content": text});
        let messages = json!([long, {"role": "user", "content": "What is it?"}]);
        let input = json!({"input": {"messages": messages}});
        alice.starts(input).await.finishes().await;
    }
    let files = alice.state().await["values"]["files"].clone();
    for ((body, path), text) in bodies(&server)
        .iter()
        .zip(["/large_messages/m1", "/large_messages/m1-2"])
        .zip(&texts)
    {
        assert!(body.contains(&format!("in the file {path}:")), "{body:.3000}");
        assert_eq!(files[path]["content"], json!(text));
    }
}

async fn the_length_of_messages_that_are_shown_whole_is_a_setting(server: TestServer) {
    let agents = "[agents.brief]\nmodel = \"fake_openai:m-1\"\nhuman_message_token_limit_before_evict = 2000\n\
                  workspace = { kind = \"disk\", root = \"work\" }\n";
    std::fs::create_dir_all(server.path_of("work")).expect("a folder");
    server.is_configured_with(agents).await;
    let alice = server.human("brief").await;
    let whole = "y".repeat(8_000);
    let long = format!("{}END", "z".repeat(8_000));
    server.models.will([Turn::Says("one"), Turn::Says("two")]);
    alice.says(&whole).await;
    alice.says(&long).await;
    let asked = bodies(&server);
    assert!(asked[1].contains(&whole), "a message of that length is shown whole");
    assert!(!asked[1].contains(&long), "a longer one is not");
    let id = alice.state().await["values"]["messages"][2]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/large_messages/{id}");
    let files = alice.state().await["values"]["files"].clone();
    assert_eq!(files[&path]["content"], json!(long), "{files}");
    assert!(
        !server.path_of("work/large_messages").exists(),
        "it is the thread's own"
    );
}
