//! docs/cli.md against the program: every command has its section, and every flag is in it.

use std::collections::BTreeMap;

use clap::{Arg, Command};

const PAGE: &str = include_str!("../../docs/cli.md");

/// Flags that every command has; the page has them once, among its rules.
const GLOBAL: [&str; 4] = ["home", "json", "help", "version"];

/// The page's sections by their headings.
fn sections() -> BTreeMap<&'static str, &'static str> {
    PAGE.split("\n### ")
        .skip(1)
        .filter_map(|section| {
            let (heading, text) = section.split_once('\n')?;
            let text = text.split("\n## ").next()?;
            Some((heading.trim().trim_matches('`'), text))
        })
        .collect()
}

/// Every command that does something, with its full name.
fn leaves(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
    let below: Vec<_> = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
        .collect();
    if below.is_empty() {
        found.push((name.to_owned(), command.clone()));
    }
    for sub in below {
        leaves(sub, &format!("{name} {}", sub.get_name()), found);
    }
}

fn commands() -> Vec<(String, Command)> {
    let mut found = Vec::new();
    leaves(&skein::cli::definition(), "skein", &mut found);
    found
}

fn flags(command: &Command) -> impl Iterator<Item = &str> {
    command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .filter_map(Arg::get_long)
        .filter(|flag| !GLOBAL.contains(flag))
}

#[test]
fn every_command_has_its_section_and_every_flag_is_in_it() {
    let sections = sections();
    for (name, command) in commands() {
        let section = sections
            .get(name.as_str())
            .unwrap_or_else(|| panic!("docs/cli.md has no section `{name}`"));
        for flag in flags(&command) {
            assert!(
                section.contains(&format!("--{flag}")),
                "{name} --{flag} is not explained"
            );
        }
    }
}

#[test]
fn no_section_is_about_a_command_that_is_gone() {
    let known: Vec<String> = commands().into_iter().map(|(name, _)| name).collect();
    for heading in sections()
        .keys()
        .filter(|heading| heading.starts_with("skein"))
    {
        assert!(
            known.iter().any(|name| name == heading),
            "`{heading}` is no command"
        );
    }
}

#[test]
fn no_section_explains_a_flag_that_is_gone() {
    let sections = sections();
    for (name, command) in commands() {
        let Some(section) = sections.get(name.as_str()) else {
            continue;
        };
        let known: Vec<&str> = flags(&command).collect();
        // A table's first column is what the command takes.
        let rows = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `--"));
        for row in rows {
            let flag = row.split([' ', '`']).next().unwrap_or_default();
            assert!(known.contains(&flag), "{name} has no --{flag}");
        }
    }
}

#[test]
fn the_rules_name_the_global_flags_and_every_error_code_and_its_exit_status() {
    for flag in GLOBAL {
        assert!(PAGE.contains(&format!("--{flag}")), "--{flag}");
    }
    use skein::error::Code::*;
    for code in [
        Failed,
        Usage,
        NotYet,
        NoAgent,
        Refused,
        DoesNotFit,
        BadModel,
        BadInput,
        NotFound,
        TimedOut,
        Interrupted,
    ] {
        let name = serde_json::to_value(code).unwrap();
        let name = format!("`{}`", name.as_str().unwrap());
        let row = format!("| {} |", code.exit_status());
        let rows = PAGE.lines().filter(|line| line.starts_with(&row));
        assert!(
            rows.into_iter().any(|line| line.contains(&name)),
            "{name} in row {row}"
        );
    }
}
