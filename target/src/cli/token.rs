//! `onefold token ...`: who may use the API over HTTP.

use std::process::ExitCode;

use api::client::Client;
use api::tokens::{CreateToken, Role, Secret, TokenView, now};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;

use super::args::PoolArg;
use super::ask::tell;
use super::run::converse;
use super::table::{Align, table};
use super::{Outcome, print, print_json};
use crate::time::{Lifetime, parse_lifetime};

/// Seconds of a day.
const DAY: u64 = 86_400;

/// What a token may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Look at everything but tokens
    Read,
    /// Also make and attach volumes, scrub, check
    Operate,
    /// Everything
    Admin,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Read => Self::Read,
            RoleArg::Operate => Self::Operate,
            RoleArg::Admin => Self::Admin,
        }
    }
}

/// `onefold token ...`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token for the API over HTTP, and print it: nobody can show it again
    #[command(
        after_help = "Example:\n  onefold token create prometheus --role read > /etc/prometheus/onefold.token\n\n\
                      It is sent as 'Authorization: Bearer TOKEN'. The daemon keeps its hash alone."
    )]
    Create {
        /// What it is called
        name: String,
        /// What its bearer may do
        #[arg(long, value_enum, default_value_t = RoleArg::Read)]
        role: RoleArg,
        /// How long it counts, such as 90d or 12h, or never
        #[arg(long, value_name = "TIME|never", default_value = "365d", value_parser = parse_lifetime)]
        expires: Lifetime,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON: the token is its field `secret`
        #[arg(long)]
        json: bool,
    },
    /// List the tokens
    #[command(after_help = "Example:\n  onefold token list --json")]
    List {
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a token: whoever has it is refused from now on
    #[command(after_help = "Example:\n  onefold token remove prometheus")]
    Remove {
        /// Its name
        name: String,
        /// The daemon's pool.
        #[command(flatten)]
        pool: PoolArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What `--json` prints of a new token.
#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    token: &'a TokenView,
    secret: &'a str,
}

pub(super) fn run(command: TokenCommand) -> Outcome {
    match command {
        TokenCommand::Create {
            name,
            role,
            expires,
            pool,
            json,
        } => {
            let secret = Secret::random();
            let request = CreateToken {
                name,
                role: role.into(),
                sha256: secret.hash(),
                lifetime_seconds: expires.0.map(|time| time.as_secs()),
            };
            let token = converse(Client::new(&pool.pool).create_token(&request))?;
            if json {
                print_json(&Created {
                    token: &token,
                    secret: secret.text(),
                })?;
                return Ok(ExitCode::SUCCESS);
            }
            print(&format!("{}\n", secret.text()));
            tell([format!(
                "The token '{}' has the role '{}' and ends {}. It is not shown again.",
                token.name,
                token.role,
                end(&token)
            )]);
        }
        TokenCommand::List { pool, json } => {
            let tokens = converse(Client::new(&pool.pool).tokens())?;
            match json {
                true => print_json(&tokens)?,
                false => print(&token_table(&tokens)),
            }
        }
        TokenCommand::Remove { name, pool, json } => {
            let token = converse(Client::new(&pool.pool).remove_token(&name))?;
            match json {
                true => print_json(&token)?,
                false => print(&format!("removed token '{}'\n", token.name)),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// When a token ends, for people.
fn end(token: &TokenView) -> String {
    match token.expires_seconds {
        None => "never".to_owned(),
        Some(_) if token.expired => "in the past".to_owned(),
        Some(at) => match at.saturating_sub(now()).div_ceil(DAY) {
            0 | 1 => "within a day".to_owned(),
            days => format!("in {days} days"),
        },
    }
}

fn token_table(tokens: &[TokenView]) -> String {
    let row = |token: &TokenView| vec![token.name.clone(), token.role.to_string(), end(token)];
    let rows: Vec<_> = tokens.iter().map(row).collect();
    table(
        &["TOKEN", "ROLE", "ENDS"],
        &rows,
        &[Align::Left, Align::Left, Align::Left],
    )
}
