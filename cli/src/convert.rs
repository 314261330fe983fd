use clap::Args;
#[derive(Debug, Args)]
pub struct Convert {}
pub fn run(_: &Convert, _: &mut dyn std::io::Write) -> anyhow::Result<()> {
    Ok(())
}
