# Two stages: the first builds, the second holds nothing but the program.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag adjutant .
#
# The build runs on the machine's own processor and compiles for the other one: emulated, it would take hours. BuildKit sets
# BUILDPLATFORM, BUILDARCH and TARGETARCH.
FROM --platform=$BUILDPLATFORM rust:1.95-bookworm AS build
ARG BUILDARCH
ARG TARGETARCH
WORKDIR /src

# The C compiler, the linker and the standard library for the processor of the image.
RUN case "$TARGETARCH" in \
        amd64) rust=x86_64-unknown-linux-gnu gcc=x86-64-linux-gnu cc=x86_64-linux-gnu-gcc ;; \
        arm64) rust=aarch64-unknown-linux-gnu gcc=aarch64-linux-gnu cc=aarch64-linux-gnu-gcc ;; \
        *) echo "there is no image for $TARGETARCH" >&2; exit 1 ;; \
    esac \
    && if [ "$TARGETARCH" != "$BUILDARCH" ]; then \
        apt-get update \
        && apt-get install -y --no-install-recommends "gcc-$gcc" "libc6-dev-$TARGETARCH-cross" \
        && rm -rf /var/lib/apt/lists/* \
        && rustup target add "$rust"; \
    fi \
    && variable=$(echo "$rust" | tr a-z- A-Z_) \
    && printf '%s\n' "export CARGO_BUILD_TARGET=$rust" "export CARGO_TARGET_${variable}_LINKER=$cc" \
        "export CC_$(echo "$rust" | tr - _)=$cc" > /target.env

# The dependencies first, so that a change of the program does not build them again.
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
RUN mkdir -p src benches \
    && echo 'fn main() {}' > src/main.rs \
    && touch src/lib.rs \
    && . /target.env \
    && cargo build --profile dist --locked --bin adjutant \
    && rm -rf src benches

COPY build.rs build.rs
COPY src src
COPY migrations migrations
COPY openapi openapi
COPY examples examples
COPY console/dist console/dist
# The stand-ins above are younger than the sources.
RUN touch src/main.rs src/lib.rs \
    && . /target.env \
    && cargo build --profile dist --locked --bin adjutant \
    && cp "target/$CARGO_BUILD_TARGET/dist/adjutant" /adjutant

# The bill of materials of exactly these dependencies, in the format CycloneDX.
RUN cargo install cargo-cyclonedx --version 0.5.9 --locked --debug --root /tools \
    && . /target.env \
    && PATH="/tools/bin:$PATH" cargo cyclonedx --format json --target "$CARGO_BUILD_TARGET" --override-filename sbom

# The certificate authorities are the same for every processor. An empty folder becomes that of the data.
RUN install -d -o 10001 -g 10001 /data

# Nothing runs here, so that the image of another processor needs no emulation.
FROM debian:bookworm-slim
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=10001:10001 /data /data
COPY --from=build /adjutant /usr/local/bin/adjutant
COPY --from=build /src/sbom.json /usr/share/doc/adjutant/sbom.cdx.json

# A configuration mounted at /data/adjutant.toml, or agents at /data/agents, are found; these settings precede them.
ENV ADJUTANT_LISTEN=0.0.0.0:8123 \
    ADJUTANT_DATABASE_URL=sqlite:///data/adjutant.db
# It listens on all addresses of the container, and has no authentication: it does not start before whoever runs it says
# that this is wanted (ADJUTANT_INSECURE_NO_AUTH=1; docs/security.md, "In a container").
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8123
# SIGTERM, which is what `docker stop` sends, ends the server in good order.
STOPSIGNAL SIGTERM
# Asks the server at the configured address.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --start-interval=1s --retries=3 CMD ["adjutant", "health"]
ENTRYPOINT ["adjutant"]

# What changes with every build comes last, so that the layers before stay the same.
ARG VERSION=0.1.0
ARG REVISION
ARG CREATED
ARG SOURCE
LABEL org.opencontainers.image.title="adjutant" \
      org.opencontainers.image.description="A server for deep agents: durable threads, delegation to subagents, approvals and streams in one binary." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="debian:bookworm-slim" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.source="$SOURCE"
