//! `adjutant init`: writes a project for a real model. All files are written, or none.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use crate::config::{InitCommand, InitTemplate};
use crate::definition::provider::{PROVIDERS, ProviderKind};

/// The model in the templates, which the given one replaces.
const TEMPLATE_MODEL: &str = "openai:gpt-5";

/// The section for the provider `scripted`, which exists only where it is configured.
const SCRIPTED_SECTION: &str = "
# A model that plays scripts, for tests: clients decide what it says.
[providers.scripted]
kind = \"scripted\"
";

/// A file of a project: its path and its text.
type TemplateFile = (&'static str, &'static str);

/// Names a file of a template. A macro, since the path of an included file is a literal.
macro_rules! template_file {
    ($template:literal, $path:literal) => {
        (
            $path,
            include_str!(concat!("../../examples/init/", $template, "/", $path)),
        )
    };
}

const MINIMAL: &[TemplateFile] = &[
    template_file!("minimal", "adjutant.toml"),
    template_file!("minimal", "README.md"),
];

const RESEARCH: &[TemplateFile] = &[
    template_file!("research", "adjutant.toml"),
    template_file!("research", "README.md"),
    template_file!("research", "agents/research/AGENTS.md"),
    template_file!("research", "agents/research/subagents/researcher.md"),
    template_file!("research", "agents/research/subagents/critic.md"),
    template_file!("research", "agents/research/skills/report/SKILL.md"),
];

const SUPPORT: &[TemplateFile] = &[
    template_file!("support", "adjutant.toml"),
    template_file!("support", "README.md"),
    template_file!("support", "agents/support/AGENTS.md"),
    template_file!("support", "agents/support/skills/refunds/SKILL.md"),
    template_file!("support", "agents/support/skills/shipping/SKILL.md"),
    template_file!("support", "tools/desk.py"),
];

const CODING: &[TemplateFile] = &[
    template_file!("coding", "adjutant.toml"),
    template_file!("coding", "README.md"),
    template_file!("coding", "agents/coding/AGENTS.md"),
    template_file!("coding", "agents/coding/CONVENTIONS.md"),
    template_file!("coding", "agents/coding/subagents/reviewer.md"),
    template_file!("coding", "agents/coding/subagents/explorer.md"),
    template_file!("coding", "agents/coding/skills/bug-fix/SKILL.md"),
];

const GITIGNORE: &str = include_str!("../../examples/init/common/gitignore");

/// Files that a folder may have already. They stay as they are.
const KEPT: [&str; 2] = [".gitignore", "README.md"];

/// A file that is to be written.
struct PlannedFile {
    path: PathBuf,
    /// The path from the folder of the project.
    name: String,
    text: String,
}

/// Writes the project and returns what to do next.
///
/// # Errors
/// Returns an error if the model is not one, if files exist and may not be replaced, or if a file cannot be written.
/// Nothing is written then.
pub fn run(command: &InitCommand) -> anyhow::Result<String> {
    let provider = provider_of(&command.model)?;
    let folder = &command.directory;
    if folder.exists() && !folder.is_dir() {
        return Err(anyhow!("{} is not a folder: name another one", folder.display()));
    }
    let (kept, planned): (Vec<_>, Vec<_>) = files(command, provider)
        .into_iter()
        .partition(|file| !command.force && KEPT.contains(&file.name.as_str()) && is_there(&file.path));
    let taken: Vec<&str> = planned
        .iter()
        .filter(|file| is_there(&file.path))
        .map(|file| file.name.as_str())
        .collect();
    if !command.force && !taken.is_empty() {
        return Err(anyhow!(
            "{} has these files already: {}. Nothing was written. Name another folder, or give --force to replace them",
            folder.display(),
            taken.join(", ")
        ));
    }
    write_all(&planned)?;
    Ok(next_steps(command, provider, &planned, &kept))
}

/// Returns whether there is something at a path, also a link that leads nowhere.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Returns the provider of a model.
fn provider_of(model: &str) -> anyhow::Result<ProviderKind> {
    let form = "must be PROVIDER:MODEL, as in openai:gpt-5";
    let Some((provider, name)) = model.split_once(':') else {
        return Err(anyhow!("--model {model:?} {form}"));
    };
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '\'' | '#');
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(anyhow!("--model {model:?} {form}"));
    }
    let known = PROVIDERS.iter().find(|traits| traits.word == provider);
    known.map(|traits| traits.kind).ok_or_else(|| {
        let words: Vec<&str> = PROVIDERS.iter().map(|traits| traits.word).collect();
        anyhow!(
            "--model {model:?}: there is no provider `{provider}`; there are {}. Gateways and other servers are added to \
             the file, in a section [providers.NAME]",
            words.join(", ")
        )
    })
}

fn files(command: &InitCommand, provider: ProviderKind) -> Vec<PlannedFile> {
    let template = match command.template {
        InitTemplate::Minimal => MINIMAL,
        InitTemplate::Research => RESEARCH,
        InitTemplate::Support => SUPPORT,
        InitTemplate::Coding => CODING,
    };
    let with_model = |(name, text): &TemplateFile| {
        let mut text = text.replace(TEMPLATE_MODEL, &command.model);
        if *name == "adjutant.toml" && provider == ProviderKind::Scripted {
            text.push_str(SCRIPTED_SECTION);
        }
        ((*name).to_owned(), text)
    };
    let own = template.iter().map(with_model);
    let common = [
        (".env.example".to_owned(), env_example(provider)),
        (".gitignore".to_owned(), GITIGNORE.to_owned()),
    ];
    own.chain(common)
        .map(|(name, text)| PlannedFile {
            path: command.directory.join(&name),
            name,
            text,
        })
        .collect()
}

fn env_example(provider: ProviderKind) -> String {
    let mut text = "\
# Copy this file to `.env` and set the values. The server reads `.env` beside its configuration when it starts; variables of
# the environment precede it. Keep `.env` out of version control.
"
    .to_owned();
    let traits = provider.traits();
    let line = match traits.key_variables.first() {
        Some(variable) if traits.needs_key => format!("{variable}=\n"),
        Some(variable) => format!("# The provider needs no key. If yours does:\n# {variable}=\n"),
        None => "# The provider needs no key.\n".to_owned(),
    };
    text.push_str(&line);
    text.push_str("\n# Every setting of adjutant.toml can be given here, too. This is `listen` of `[server]`:\n");
    text.push_str("# ADJUTANT_SERVER__LISTEN=127.0.0.1:9000\n");
    text
}

/// Writes all files under temporary names, and then gives them their own. If one cannot be written, none is.
fn write_all(files: &[PlannedFile]) -> anyhow::Result<()> {
    let mut staged: Vec<(PathBuf, &PlannedFile)> = vec![];
    let written = files.iter().try_for_each(|file| {
        let folder = file.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = folder.join(format!(".{name}.{}.new", std::process::id()));
        staged.push((temporary.clone(), file));
        write_new(&temporary, &file.text).with_context(|| format!("cannot write {}", file.path.display()))
    });
    if let Err(error) = written {
        for (temporary, _) in &staged {
            // The first error is the one to report.
            let _ = std::fs::remove_file(temporary);
        }
        return Err(error);
    }
    for (temporary, file) in &staged {
        std::fs::rename(temporary, &file.path).with_context(|| format!("cannot write {}", file.path.display()))?;
    }
    Ok(())
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn next_steps(command: &InitCommand, provider: ProviderKind, written: &[PlannedFile], kept: &[PlannedFile]) -> String {
    let folder = &command.directory;
    let mut text = format!("Wrote to {}:\n", folder.display());
    // Writing to a string cannot fail.
    for file in written {
        let _ = writeln!(text, "  {}", file.name);
    }
    for file in kept {
        let _ = writeln!(text, "  {} (was there already, and is as it was)", file.name);
    }
    if kept.iter().any(|file| file.name == ".gitignore") {
        text.push_str("\nYour .gitignore should have these lines:\n  .env\n  adjutant.db*\n");
    }
    text.push_str("\nNext:\n");
    if folder != Path::new(".") {
        let _ = writeln!(text, "  cd {}", folder.display());
    }
    let traits = provider.traits();
    if let Some(variable) = traits.key_variables.first().filter(|_| traits.needs_key) {
        let _ = writeln!(text, "  cp .env.example .env        # and set {variable} in it");
    }
    text.push_str("  adjutant check --connect    # is everything there?\n");
    text.push_str("  adjutant                    # serve\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(directory: &Path, template: InitTemplate) -> InitCommand {
        InitCommand {
            directory: directory.to_path_buf(),
            template,
            model: "anthropic:claude-sonnet-4-6".to_owned(),
            force: false,
        }
    }

    /// Returns the paths of all files below a folder.
    fn paths(folder: &Path) -> Vec<PathBuf> {
        let mut found = vec![];
        for entry in folder.read_dir().expect("a folder").flatten() {
            match entry.path().is_dir() {
                true => found.extend(paths(&entry.path())),
                false => found.push(entry.path()),
            }
        }
        found
    }

    #[test]
    fn the_templates_have_all_their_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/init");
        for (name, template) in [
            ("minimal", MINIMAL),
            ("research", RESEARCH),
            ("support", SUPPORT),
            ("coding", CODING),
        ] {
            let mut listed: Vec<PathBuf> = template.iter().map(|(path, _)| root.join(name).join(path)).collect();
            let mut there = paths(&root.join(name));
            listed.sort();
            there.sort();
            assert_eq!(listed, there);
        }
    }

    #[test]
    fn the_given_model_replaces_that_of_the_template() {
        let folder = tempfile::tempdir().expect("a folder");
        for template in [
            InitTemplate::Minimal,
            InitTemplate::Research,
            InitTemplate::Support,
            InitTemplate::Coding,
        ] {
            let project = folder.path().join(format!("{template:?}"));
            let text = run(&command(&project, template)).expect("it is written");
            assert!(text.contains("set ANTHROPIC_API_KEY"), "{text}");
            let all: Vec<String> = paths(&project)
                .iter()
                .map(|path| std::fs::read_to_string(path).expect("a text"))
                .collect();
            assert!(all.iter().all(|text| !text.contains(TEMPLATE_MODEL)));
            assert!(all.iter().any(|text| text.contains("anthropic:claude-sonnet-4-6")));
            assert!(all.iter().any(|text| text.contains("ANTHROPIC_API_KEY=\n")));
        }
    }

    #[test]
    fn nothing_is_written_if_a_file_is_there_and_force_replaces_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let there = folder.path().join("agents/research/AGENTS.md");
        std::fs::create_dir_all(there.parent().expect("a folder")).expect("it can be made");
        std::fs::write(&there, "mine").expect("a file");
        let wanted = command(folder.path(), InitTemplate::Research);
        let refused = run(&wanted).expect_err("a file is there").to_string();
        assert!(
            refused.contains("agents/research/AGENTS.md. Nothing was written"),
            "{refused}"
        );
        assert_eq!(paths(folder.path()), std::slice::from_ref(&there));
        assert_eq!(std::fs::read_to_string(&there).expect("a text"), "mine");
        run(&InitCommand { force: true, ..wanted }).expect("it is written");
        assert_ne!(std::fs::read_to_string(&there).expect("a text"), "mine");
        assert!(
            paths(folder.path())
                .iter()
                .all(|path| !path.to_string_lossy().ends_with(".new"))
        );
    }

    #[test]
    fn a_readme_and_a_gitignore_of_the_folder_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in KEPT {
            std::fs::write(folder.path().join(name), "mine").expect("a file");
        }
        let text = run(&command(folder.path(), InitTemplate::Minimal)).expect("it is written");
        assert!(text.contains("Your .gitignore should have these lines"), "{text}");
        for name in KEPT {
            assert_eq!(
                std::fs::read_to_string(folder.path().join(name)).expect("a text"),
                "mine"
            );
        }
    }

    #[test]
    fn a_failure_on_the_way_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        // A file where the template needs a folder.
        std::fs::write(folder.path().join("agents"), "mine").expect("a file");
        run(&command(folder.path(), InitTemplate::Coding)).expect_err("`agents` is a file");
        assert_eq!(paths(folder.path()), [folder.path().join("agents")]);
    }

    #[test]
    fn a_model_without_a_known_provider_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        for (model, expected) in [
            ("gpt-5", "must be PROVIDER:MODEL"),
            ("openai:", "must be PROVIDER:MODEL"),
            ("openai:a\"\nb", "must be PROVIDER:MODEL"),
            ("lab:small", "there is no provider `lab`; there are openai"),
        ] {
            let wanted = InitCommand {
                model: model.to_owned(),
                ..command(folder.path(), InitTemplate::Minimal)
            };
            let refused = run(&wanted).expect_err(model).to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        assert!(paths(folder.path()).is_empty());
    }
}
