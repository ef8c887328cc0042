//! `inco image`: images of network functions.

use std::io::Read as _;
use std::path::Path;

use display::output::{self, WrongUsage};
use display::table::{Table, span_ms};
use engine::image::Image;
use engine::{EngineError, ImageRef};
use images::{
    RegistryOptions, build_function, deliver, import_program, in_store, pull, registry_of, remarks, store,
};

use crate::cli::{ImageArgs, ImageBuildArgs, ImageCommand, ImageImportArgs, ImageListArgs, ImagePullArgs};

pub(crate) fn run(args: &ImageArgs) -> anyhow::Result<()> {
    match &args.command {
        ImageCommand::Build(args) => build(args),
        ImageCommand::Pull(args) => pull_all(args),
        ImageCommand::Import(args) => import(args),
        ImageCommand::List(args) => list(args),
        ImageCommand::Remove(args) => {
            let name = ImageRef::from(args.name.as_str());
            store().remove(&name)?;
            output::line(format!("removed {}", name.with_tag()))
        }
    }
}

fn build(args: &ImageBuildArgs) -> anyhow::Result<()> {
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| format!("inco/{}", args.function));
    let image = build_function(&args.function, &ImageRef::from(name.as_str()))?;
    deliver(args.to.engine, &args.to.host, &image)?;
    print(&image, args.json)
}

fn pull_all(args: &ImagePullArgs) -> anyhow::Result<()> {
    for name in &args.names {
        let mut options = RegistryOptions::default();
        if args.plain_http {
            options.plain_http.extend(registry_of(name));
        }
        let pulled = pull(&ImageRef::from(name.as_str()), &options, &output::complain)?;
        deliver(args.to.engine, &args.to.host, &pulled.image)?;
        if args.json {
            output::json(&pulled.image, false)?;
        } else if pulled.is_current {
            output::line(format!("{}: as in its registry", pulled.image.name))?;
        } else {
            print(&pulled.image, false)?;
        }
    }
    Ok(())
}

fn import(args: &ImageImportArgs) -> anyhow::Result<()> {
    let image = match &args.source {
        Some(source) if is_program(source) => import_program(
            &ImageRef::from(args.name.as_str()),
            &source.to_string_lossy(),
            &args.command,
        )?,
        Some(source) => import_files(&ImageRef::from(args.name.as_str()), source, args)?,
        None if is_path(&args.name) => {
            let source = Path::new(&args.name);
            let name = store().name_in(source)?.ok_or_else(|| {
                let example = format!("inco image import lab/NAME {}", args.name);
                WrongUsage(format!(
                    "{} does not say how its image is named; write for example\n  {example}",
                    args.name
                ))
            })?;
            import_files(&name, source, args)?
        }
        None => {
            let program = args
                .name
                .rsplit_once(':')
                .map_or(args.name.as_str(), |(name, _)| name);
            import_program(&ImageRef::from(args.name.as_str()), program, &args.command).map_err(|error| {
                let write = "name a tar archive or a directory after it, or get it by `inco image pull`";
                WrongUsage(format!("{error:#}; {write}"))
            })?
        }
    };
    deliver(args.to.engine, &args.to.host, &image)?;
    print(&image, args.json)
}

/// Whether the only argument names a file or directory, and not an image or program.
fn is_path(text: &str) -> bool {
    text.contains(['/', '.']) && Path::new(text).exists()
}

/// Whether this is an ELF program, and not an archive.
fn is_program(path: &Path) -> bool {
    let mut magic = [0; 4];
    std::fs::File::open(path)
        .is_ok_and(|mut file| file.read_exact(&mut magic).is_ok() && magic == *b"\x7fELF")
}

fn import_files(name: &ImageRef, source: &Path, args: &ImageImportArgs) -> anyhow::Result<Image> {
    let imported = store()
        .import(name, source, &args.command, &args.env)
        .map_err(|error| match error {
            EngineError::NoProgram => {
                let source = source.display();
                let example = format!("inco image import {name} {source} -- /path/to/program");
                WrongUsage(format!("{error}; write for example\n  {example}")).into()
            }
            // The problem is not in the store.
            EngineError::BadImage { .. } => error.into(),
            _ => in_store(error.into()),
        })?;
    for remark in remarks(&imported.left_out) {
        output::complain(&remark);
    }
    Ok(imported.image)
}

fn print(image: &Image, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(image, true);
    }
    output::line(format!(
        "{}: {}, runs {}",
        image.name,
        configuration::show_size(image.bytes),
        image.command(&[]).join(" ")
    ))
}

fn list(args: &ImageListArgs) -> anyhow::Result<()> {
    let images = store().list()?;
    if args.json {
        return output::json(&images, true);
    }
    let now_ms = clock::unix_ms();
    let mut table = Table::new(&["image", ">size", ">age", "runs"]);
    for image in &images {
        table.row([
            image.name.clone(),
            configuration::show_size(image.bytes),
            span_ms(now_ms.saturating_sub(image.created_unix_ms)),
            image.command(&[]).join(" "),
        ]);
    }
    let mut text = table.text();
    if images.is_empty() {
        text.push_str(
            "(none: get one with `inco image pull nginx`, or make one with `inco image build forward`)\n",
        );
    }
    output::text(&text)
}
