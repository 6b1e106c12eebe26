//! A chat template, run as `transformers` runs it.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, context};

use super::TokenizerError;
use super::chat::{ChatError, Message};

/// Longer prompts than any context holds are a runaway template.
const MAX_RENDERED_BYTES: usize = 64 << 20;
/// Steps of the template's program: hundreds for each of ten thousand messages. A template comes with
/// the model from a peer, and must not keep us busy for ever.
const MAX_STEPS: u64 = 5_000_000;
/// Guards the stack against a template that builds nested lists.
const MAX_JSON_DEPTH: usize = 64;
const NAME: &str = "chat template";

pub(super) struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl Template {
    pub fn new(source: &str, bos: String, eos: String) -> Result<Self, TokenizerError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment
            .set_syntax(syntax.map_err(|error| TokenizerError::Template(error.to_string()))?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(MAX_STEPS));
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: &str| {
            format_time(SystemTime::now(), format)
        });
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| TokenizerError::Template(error.to_string()))?;
        Ok(Self {
            environment,
            bos,
            eos,
        })
    }

    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let failed = |error: Error| {
            let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref());
            match cause {
                Some(Refusal(message)) => ChatError::Refused(message.clone()),
                None => ChatError::Failed(error.to_string()),
            }
        };
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let context = context! {
            messages => Value::from_iter(messages.iter().map(as_value)),
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            tools => (),
            documents => (),
        };
        let mut rendered = Bounded(Vec::new());
        template
            .render_captured_to(context, &mut rendered)
            .map_err(failed)?;
        String::from_utf8(rendered.0).map_err(|error| ChatError::Failed(error.to_string()))
    }
}

/// What a template itself says about a conversation that it does not take.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(
        Error::new(ErrorKind::InvalidOperation, "refused by the template")
            .with_source(Refusal(message)),
    )
}

struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED_BYTES {
            return Err(std::io::Error::other("the prompt is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn as_value(message: &Message) -> Value {
    context! {
        role => message.role.as_str(),
        content => message.content.as_str(),
    }
}

/// JSON as Python's `json.dumps` writes it: a space after `:` and `,`, nothing escaped for HTML.
fn to_json(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Accepted for the sake of templates that say what is the default here.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut json = String::new();
    write_json(&value, indent.map(|width| width.min(16)), 0, &mut json)?;
    Ok(Value::from_safe_string(json))
}

fn write_json(
    value: &Value,
    indent: Option<usize>,
    depth: usize,
    json: &mut String,
) -> Result<(), Error> {
    if depth > MAX_JSON_DEPTH {
        let what = "the value is nested too deeply";
        return Err(Error::new(ErrorKind::BadSerialization, what));
    }
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let break_line = |json: &mut String, depth: usize| {
        if let Some(width) = indent {
            json.push('\n');
            json.push_str(&" ".repeat(width * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => json.push_str("null"),
        ValueKind::Bool => json.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => json.push_str(&value.to_string()),
        ValueKind::Map => {
            json.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                json.push_str(if index == 0 { "" } else { comma });
                break_line(json, depth + 1);
                json.push_str(&text(&key.to_string()));
                json.push_str(": ");
                write_json(&value.get_item(&key)?, indent, depth + 1, json)?;
            }
            if value.len() != Some(0) {
                break_line(json, depth);
            }
            json.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            json.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                json.push_str(if index == 0 { "" } else { comma });
                break_line(json, depth + 1);
                write_json(&item, indent, depth + 1, json)?;
            }
            if value.len() != Some(0) {
                break_line(json, depth);
            }
            json.push(']');
        }
        _ => json.push_str(&text(&value.to_string())),
    }
    Ok(())
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// `strftime` in UTC, for the directives that prompts use; others stay as they are written.
fn format_time(time: SystemTime, format: &str) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil_from_days(days);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('b') => out.push_str(&month_name[..3]),
            Some('B') => out.push_str(month_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of the Gregorian calendar from days since 1970-01-01, counting years from
/// March so that the leap day comes last.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn render(source: &str, content: &str) -> Result<String, ChatError> {
        let template = Template::new(source, "<s>".into(), "</s>".into()).unwrap();
        template.render(
            &[Message {
                role: "user".into(),
                content: content.into(),
            }],
            true,
        )
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(format_time(at(0), "%A %d %b %Y"), "Thursday 01 Jan 1970");
        let leap = at(1_709_210_096);
        assert_eq!(
            format_time(leap, "%a %d %B %y %H:%M:%S %% %q %m"),
            "Thu 29 February 24 12:34:56 % %q 02"
        );
        assert_eq!(format_time(at(4_107_542_400), "%d %m %Y%"), "01 03 2100%");
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let source = "{{ {'a': [1, 'é<', none, true], 'b': {}} | tojson }}";
        assert_eq!(
            render(source, "").unwrap(),
            r#"{"a": [1, "é<", null, true], "b": {}}"#
        );
        let indented = "{{ {'a': [1]} | tojson(indent=2) }}";
        assert_eq!(
            render(indented, "").unwrap(),
            "{\n  \"a\": [\n    1\n  ]\n}"
        );
    }

    #[test]
    fn a_template_may_refuse_a_conversation_in_its_own_words() {
        let source = "{{ raise_exception('roles must alternate') }}";
        assert_eq!(
            render(source, ""),
            Err(ChatError::Refused("roles must alternate".into()))
        );
    }

    #[test]
    fn blocks_and_python_methods_work_as_in_transformers() {
        let source = "{% for m in messages %}\n    {% if m.role.startswith('us') %}\n{{ m['content'].strip() }}|{{ bos_token }}{{ eos_token }}\n    {% endif %}\n{% endfor %}\n";
        assert_eq!(render(source, "  hi ").unwrap(), "hi|<s></s>\n");
    }

    #[test]
    fn a_runaway_template_is_stopped() {
        let range = "{% for a in range(90000) %}{% for b in range(90000) %}";
        for body in ["", "{{ messages }}"] {
            let source = format!("{range}{body}{{% endfor %}}{{% endfor %}}");
            assert!(matches!(render(&source, "x"), Err(ChatError::Failed(_))));
        }
    }

    #[test]
    fn a_long_conversation_is_not_a_runaway() {
        let template = Template::new(
            "{% for m in messages %}{{ m.role + ': ' + m.content | trim }}\n{% endfor %}",
            String::new(),
            String::new(),
        );
        let message = Message {
            role: "user".into(),
            content: "word ".repeat(100),
        };
        let rendered = template.unwrap().render(&vec![message; 10_000], true);
        assert!(rendered.unwrap().len() > 5_000_000);
    }

    #[test]
    fn a_broken_template_is_refused_when_it_is_read() {
        assert!(matches!(
            Template::new("{% for %}", String::new(), String::new()),
            Err(TokenizerError::Template(_))
        ));
    }
}
