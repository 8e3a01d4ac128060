//! The program: reads the command line, then serves or checks.

use std::process::ExitCode;

use adjutant::config::{self, Arguments, Command};
use clap::Parser;

fn main() -> ExitCode {
    match Arguments::parse().into_command() {
        Command::Check(settings) => {
            let (text, is_usable) = config::verdict(&config::load(&settings));
            print!("{text}");
            if is_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Command::Serve(settings) => match config::load(&settings) {
            Ok(loaded) => {
                print!("{}", config::verdict(&Ok(loaded)).0);
                ExitCode::SUCCESS
            }
            Err(problems) => {
                eprintln!("{problems}");
                ExitCode::FAILURE
            }
        },
    }
}
