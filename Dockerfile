# Two stages: the first builds, the second holds nothing but the program.
FROM rust:1.95-bookworm AS build
WORKDIR /src

# The dependencies first, so that a change of the program does not build them again.
COPY Cargo.toml Cargo.lock ./
RUN mkdir -p src benches \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs \
    && cargo build --profile dist --locked --bin adjutant \
    && rm -rf src benches

COPY src src
COPY migrations migrations
COPY openapi openapi
COPY examples examples
COPY console/dist console/dist
# The stand-ins above are younger than the sources.
RUN touch src/main.rs src/lib.rs \
    && cargo build --profile dist --locked --bin adjutant

# The bill of materials of exactly these dependencies, in the format CycloneDX.
RUN cargo install cargo-cyclonedx --version 0.5.9 --locked --debug --root /tools \
    && PATH="/tools/bin:$PATH" cargo cyclonedx --format json --override-filename sbom

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /data --no-create-home adjutant \
    && install -d -o adjutant -g adjutant /data
COPY --from=build /src/target/dist/adjutant /usr/local/bin/adjutant
COPY --from=build /src/sbom.json /usr/share/doc/adjutant/sbom.cdx.json

# A configuration mounted at /data/adjutant.toml, or agents at /data/agents, are found; these settings precede them.
ENV ADJUTANT_LISTEN=0.0.0.0:8123 \
    ADJUTANT_DATABASE_URL=sqlite:///data/adjutant.db
# It listens on all addresses of the container, and has no authentication: it does not start before whoever runs it says
# that this is wanted (ADJUTANT_INSECURE_NO_AUTH=1; docs/security.md, "In a container").
USER adjutant
WORKDIR /data
VOLUME /data
EXPOSE 8123
# SIGTERM, which is what `docker stop` sends, ends the server in good order.
STOPSIGNAL SIGTERM
ENTRYPOINT ["adjutant"]
