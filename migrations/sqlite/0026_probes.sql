-- A row that is written to see whether the database can be written to.
create table probes (
    probe integer not null primary key,
    written_at bigint not null
);
