//! The context windows of well-known models.
//!
//! The numbers are those that the providers publish for the input of a request. A model that is not listed has none:
//! the configuration can give it one.

/// The window that is assumed of a model whose window is not known, in tokens.
pub const ASSUMED: u64 = 200_000;

/// The beginnings of model names with their windows, in tokens. The first one that fits counts.
const WINDOWS: [(&str, u64); 53] = [
    ("gpt-5-chat", 128_000),
    ("gpt-5.2-chat", 128_000),
    ("gpt-5.3-chat", 128_000),
    ("gpt-5.3-codex-spark", 96_000),
    ("gpt-5.4-mini", 272_000),
    ("gpt-5.4-nano", 272_000),
    ("gpt-5.4", 922_000),
    ("gpt-5.5", 922_000),
    ("gpt-5.6", 922_000),
    ("gpt-5", 272_000),
    ("gpt-6", 922_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gpt-4", 8_192),
    ("gpt-3.5-turbo", 16_385),
    ("gpt-oss", 131_072),
    ("chatgpt-4o", 128_000),
    ("o1-mini", 128_000),
    ("o1-preview", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("codex-mini", 200_000),
    ("claude-2.0", 100_000),
    ("claude-instant", 100_000),
    ("claude-opus-4-6", 1_000_000),
    ("claude-opus-4.6", 1_000_000),
    ("claude-opus-4-7", 1_000_000),
    ("claude-opus-4.7", 1_000_000),
    ("claude-opus-4-8", 1_000_000),
    ("claude-opus-4.8", 1_000_000),
    ("claude-sonnet-4-6", 1_000_000),
    ("claude-sonnet-4.6", 1_000_000),
    ("claude-opus-5", 1_000_000),
    ("claude-sonnet-5", 1_000_000),
    ("claude-haiku-5", 1_000_000),
    ("claude-fable-5", 1_000_000),
    ("claude", 200_000),
    ("gemini-1.5-pro", 2_097_152),
    ("gemini-1.0", 32_760),
    ("gemini-pro", 32_760),
    ("gemini", 1_048_576),
    ("mistral-large", 131_072),
    ("mistral-small", 131_072),
    ("codestral", 256_000),
    ("deepseek-v4", 1_000_000),
    ("deepseek", 131_072),
    ("grok-4-fast", 2_000_000),
    ("grok-4-1-fast", 2_000_000),
    ("grok-4.1-fast", 2_000_000),
    ("grok-4", 256_000),
    ("grok-3", 131_072),
];

/// Returns the window of a model by its name, with or without the name of its maker before it (`maker/model`).
pub fn known(model: &str) -> Option<u64> {
    let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
    let row = WINDOWS.iter().find(|(start, _)| name.starts_with(start))?;
    Some(row.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fitting_name_counts() {
        assert_eq!(known("gpt-4o-mini"), Some(128_000));
        assert_eq!(known("gpt-4"), Some(8_192));
        assert_eq!(known("gpt-4.1-nano"), Some(1_047_576));
        assert_eq!(known("gpt-5.3-chat-latest"), Some(128_000));
        assert_eq!(known("gpt-5.3-codex"), Some(272_000));
        assert_eq!(known("gpt-5.4-mini"), Some(272_000));
        assert_eq!(known("gpt-5.4-pro"), Some(922_000));
        assert_eq!(known("anthropic/claude-sonnet-4.5"), Some(200_000));
        assert_eq!(known("anthropic/claude-sonnet-4.6"), Some(1_000_000));
        assert_eq!(known("claude-opus-4-5-20251101"), Some(200_000));
        assert_eq!(known("claude-opus-4-6"), Some(1_000_000));
        assert_eq!(known("grok-4-fast-reasoning"), Some(2_000_000));
        assert_eq!(known("my-own-model"), None);
        for (at, (name, _)) in WINDOWS.iter().enumerate() {
            let hidden = WINDOWS[..at].iter().find(|(start, _)| name.starts_with(start));
            assert_eq!(hidden, None, "{name} is never reached");
        }
    }
}
