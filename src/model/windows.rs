//! The context windows of well-known models.
//!
//! The numbers are those that the providers publish for the input of a request. A model that is not listed has none:
//! the configuration can give it one. A later version of a listed model is another model, whose window is not known.

/// The window that is assumed of a model whose window is not known, in tokens.
pub const DEFAULT_WINDOW: u64 = 200_000;

/// The beginnings of model names with their windows, in tokens; points are dashes. The first one that fits counts.
const WINDOWS: [(&str, u64); 97] = [
    ("gpt-5-chat", 128_000),
    ("gpt-5-1-chat", 128_000),
    ("gpt-5-2-chat", 128_000),
    ("gpt-5-3-chat", 128_000),
    ("gpt-5-3-codex-spark", 96_000),
    ("gpt-5-4-mini", 272_000),
    ("gpt-5-4-nano", 272_000),
    ("gpt-5", 272_000),
    ("gpt-5-1", 272_000),
    ("gpt-5-2", 272_000),
    ("gpt-5-3", 272_000),
    ("gpt-5-4", 922_000),
    ("gpt-5-5", 922_000),
    ("gpt-5-6", 922_000),
    ("gpt-6", 922_000),
    ("gpt-6-1", 922_000),
    ("gpt-6-2", 922_000),
    ("gpt-4-1", 1_047_576),
    ("gpt-4-5", 128_000),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gpt-4-vision", 128_000),
    ("gpt-4-0125", 128_000),
    ("gpt-4-1106", 128_000),
    ("gpt-4-32k", 32_768),
    ("gpt-4", 8_192),
    ("gpt-3-5-turbo", 16_385),
    ("gpt-oss", 131_072),
    ("chatgpt-4o", 128_000),
    ("o1-mini", 128_000),
    ("o1-preview", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("codex-mini", 200_000),
    ("claude-instant-1", 100_000),
    ("claude-instant-1-2", 100_000),
    ("claude-2", 100_000),
    ("claude-2-0", 100_000),
    ("claude-2-1", 200_000),
    ("claude-3", 200_000),
    ("claude-3-5", 200_000),
    ("claude-3-7", 200_000),
    ("claude-opus-4", 200_000),
    ("claude-opus-4-0", 200_000),
    ("claude-opus-4-1", 200_000),
    ("claude-opus-4-5", 200_000),
    ("claude-opus-4-6", 1_000_000),
    ("claude-opus-4-7", 1_000_000),
    ("claude-opus-4-8", 1_000_000),
    ("claude-sonnet-4", 200_000),
    ("claude-sonnet-4-0", 200_000),
    ("claude-sonnet-4-5", 200_000),
    ("claude-sonnet-4-6", 1_000_000),
    ("claude-haiku-4-5", 200_000),
    ("claude-opus-5", 1_000_000),
    ("claude-opus-5-5", 1_000_000),
    ("claude-sonnet-5", 1_000_000),
    ("claude-sonnet-5-5", 1_000_000),
    ("claude-haiku-5", 1_000_000),
    ("claude-haiku-5-5", 1_000_000),
    ("claude-fable-5", 1_000_000),
    ("claude-fable-5-1", 1_000_000),
    ("gemini-1-5-pro", 2_097_152),
    ("gemini-1-5", 1_048_576),
    ("gemini-2-0", 1_048_576),
    ("gemini-2-5", 1_048_576),
    ("gemini-3", 1_048_576),
    ("gemini-3-1", 1_048_576),
    ("gemini-3-5-flash", 1_048_576),
    ("gemini-3-6-flash", 1_048_576),
    ("gemini-3-7-flash", 1_048_576),
    ("gemini-3-8-flash", 1_048_576),
    ("gemini-flash-latest", 1_048_576),
    ("gemini-flash-lite-latest", 1_048_576),
    ("gemini-pro-latest", 1_048_576),
    ("gemini-1-0", 32_760),
    ("gemini-pro", 32_760),
    ("mistral-large", 131_072),
    ("mistral-small", 131_072),
    ("mistral-small-3-1", 131_072),
    ("mistral-small-3-2", 131_072),
    ("codestral", 256_000),
    ("deepseek-v4", 1_000_000),
    ("deepseek-v3", 131_072),
    ("deepseek-v3-1", 131_072),
    ("deepseek-v3-2", 131_072),
    ("deepseek-r1", 131_072),
    ("deepseek-v2", 131_072),
    ("deepseek-v2-5", 131_072),
    ("deepseek-chat", 131_072),
    ("deepseek-reasoner", 131_072),
    ("deepseek-coder", 131_072),
    ("grok-4-fast", 2_000_000),
    ("grok-4-1-fast", 2_000_000),
    ("grok-4", 256_000),
    ("grok-3", 131_072),
];

/// Returns the window of a model by its name, with or without the name of its maker before it (`maker/model`).
pub fn known(model: &str) -> Option<u64> {
    let name = model.rsplit('/').next().unwrap_or(model);
    let name = name.to_ascii_lowercase().replace('.', "-");
    let row = WINDOWS.iter().find(|(start, _)| fits(&name, start))?;
    Some(row.1)
}

/// Returns whether a name begins in this way, and does not go on as that of another model or of another version.
fn fits(name: &str, start: &str) -> bool {
    let Some(rest) = name.strip_prefix(start) else {
        return false;
    };
    // A number of one or two digits is a version; a date, a build and a size (`-20b`) are none.
    let version = rest.strip_prefix('-').unwrap_or_default();
    let after = version.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let digits = version.len() - after.len();
    let is_version = (1..=2).contains(&digits) && !after.starts_with(char::is_alphanumeric);
    !is_version && !rest.starts_with(char::is_alphanumeric)
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
            let hidden = WINDOWS[..at].iter().find(|(start, _)| fits(name, start));
            assert_eq!(hidden, None, "{name} is never reached");
        }
    }

    #[test]
    fn a_version_that_is_not_listed_is_not_taken_for_an_older_one() {
        for unknown in [
            "gpt-4.7",
            "gpt-5.7-mini",
            "gpt-5.12",
            "gpt-6.9",
            "gpt-60",
            "o10",
            "claude-opus-4-9",
            "claude-opus-6",
            "claude-sonnet-5.9",
            "gemini-4-pro",
            "gemini-3.9-flash",
            "grok-4.20",
            "deepseek-v5",
        ] {
            assert_eq!(known(unknown), None, "{unknown}");
        }
        for (model, window) in [
            ("gpt-5-2025-08-07", 272_000),
            ("gpt-6.1-sol", 922_000),
            ("gpt-4-0613", 8_192),
            ("gpt-4-32k", 32_768),
            ("gpt-4-1106-preview", 128_000),
            ("gpt-4.5-preview", 128_000),
            ("gpt-oss-20b", 131_072),
            ("gpt-oss:120b", 131_072),
            ("claude-sonnet-4@20250514", 200_000),
            ("claude-opus-4-20250514", 200_000),
            ("claude-opus-4-1-20250805", 200_000),
            ("claude-3-5-sonnet-20241022", 200_000),
            ("anthropic/claude-3.7-sonnet", 200_000),
            ("claude-haiku-5-5", 1_000_000),
            ("gemini-1.5-pro-002", 2_097_152),
            ("gemini-2.5-flash-preview-09-2025", 1_048_576),
            ("gemini-pro-latest", 1_048_576),
            ("grok-4-0709", 256_000),
            ("deepseek/deepseek-chat-v3.1", 131_072),
        ] {
            assert_eq!(known(model), Some(window), "{model}");
        }
    }
}
