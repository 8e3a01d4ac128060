//! Tests of model names and keys, and of the errors when one is missing.

use super::*;

fn message(result: Result<Arc<dyn Model>, ModelError>) -> String {
    match result {
        Err(error @ ModelError::Misconfigured { .. }) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("a model"),
    }
}

#[test]
fn built_in_providers_take_their_keys_from_the_environment() {
    let variable = |name: &str| (name == "OPENAI_API_KEY").then(|| "sk".to_owned());
    let providers = Providers::new(BTreeMap::new(), variable);
    let model = providers.model("openai:gpt-5").unwrap();
    assert_eq!(model.identity(), ("openai", "gpt-5"));
    assert!(Arc::ptr_eq(&model, &providers.model("openai:gpt-5").unwrap()));
    assert_eq!(providers.model("gpt-4o").unwrap().identity(), ("openai", "gpt-4o"));
    assert_eq!(
        providers.model("ollama:llama3:8b").unwrap().identity(),
        ("ollama", "llama3:8b")
    );
    assert!(message(providers.model("scripted:demo")).contains("[providers.scripted]"));
    let scripted = ProviderConfig {
        kind: ProviderKind::Scripted,
        base_url: None,
        api_key: ApiKeySource::None,
        windows: ContextWindows::default(),
        requests: RequestSettings::default(),
    };
    let configured = Providers::new(BTreeMap::from([("scripted".to_owned(), scripted)]), |_| None);
    assert_eq!(
        configured.model("scripted:demo").unwrap().identity(),
        ("scripted", "demo")
    );
    let missing = message(providers.model("anthropic:claude-x"));
    assert!(
        missing.contains("ANTHROPIC_API_KEY") && missing.contains("`anthropic`"),
        "{missing}"
    );
}

#[test]
fn the_error_for_an_unknown_provider_lists_the_known_ones() {
    let providers = Providers::new(BTreeMap::new(), |_| None);
    let unknown = message(providers.model("opnai:gpt-5"));
    assert!(
        unknown.contains("`opnai`") && unknown.contains("google_genai, ollama, openai"),
        "{unknown}"
    );
    for name in ["", "mystery", ":x", "openai:"] {
        assert!(message(providers.model(name)).contains("provider:model"), "{name}");
    }
}

#[test]
fn keys_come_from_files_and_never_show() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), " sk-from-file\n").unwrap();
    let config = |api_key| ProviderConfig {
        kind: ProviderKind::OpenAi,
        base_url: None,
        api_key,
        windows: ContextWindows::default(),
        requests: RequestSettings::default(),
    };
    let configs = [
        ("file".to_owned(), config(ApiKeySource::File(file.path().to_owned()))),
        ("gone".to_owned(), config(ApiKeySource::File("no-such-file".into()))),
        ("inline".to_owned(), config(ApiKeySource::Inline("sk-inline".into()))),
        ("none".to_owned(), config(ApiKeySource::None)),
        ("openai".to_owned(), config(ApiKeySource::None)),
    ];
    let variable = |name: &str| (name == "OPENAI_API_KEY").then(|| "sk-env".to_owned());
    let providers = Providers::new(configs.into(), variable);
    assert!(providers.model("file:m").is_ok() && providers.model("inline:m").is_ok());
    assert!(providers.model("openai:m").is_ok(), "the usual variable is used");
    assert!(message(providers.model("gone:m")).contains("`gone`"));
    assert!(message(providers.model("none:m")).contains("`api_key`"));
    let shown = format!("{providers:?}");
    assert!(!shown.contains("sk-"), "{shown}");
}
