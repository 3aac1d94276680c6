/** A client's credentials for a secured fleet, and the CA by which it knows that fleet, read from files. */

import { readFileSync } from "node:fs";

/**
 * PEM files, and a file with the API key or a JWT.
 *
 * `ca` turns on TLS and must have signed the routers' certificates. Fleets with --client-ca require `cert` and
 * `key`. The file of the API key is read again for each call, so it may be replaced.
 */
export interface Credentials {
  ca?: string | undefined;
  cert?: string | undefined;
  key?: string | undefined;
  apiKeyFile?: string | undefined;
}

/** Check which files go together, and that the API key is one. Throws `RangeError` naming what is wrong. */
export function checkCredentials(credentials: Credentials): void {
  const { ca, cert, key, apiKeyFile } = credentials;
  if ((cert === undefined) !== (key === undefined)) {
    throw new RangeError("one of cert and key is missing; accepted: both or neither");
  }
  if (ca === undefined && (cert !== undefined || apiKeyFile !== undefined)) {
    throw new RangeError(
      "ca is missing: without TLS a certificate is useless and others could read a key; " +
        "accepted: ca with cert, key or apiKeyFile",
    );
  }
  headersOf(credentials);
}

/** Return the headers of each call. */
export function headersOf({ apiKeyFile }: Credentials): Record<string, string> {
  if (apiKeyFile === undefined) return {};
  const text = readFileSync(apiKeyFile, "latin1").trim();
  if (!/^[!-~]+$/.test(text)) {
    throw new RangeError(`${apiKeyFile} must contain one line, an API key or a JWT`);
  }
  return { authorization: `Bearer ${text}` };
}

/** Return the options of TLS. */
export function tlsOf({ ca, cert, key }: Credentials): Record<string, Buffer> {
  const paths = Object.entries({ ca, cert, key });
  return Object.fromEntries(
    paths.flatMap(([name, path]) => (path === undefined ? [] : [[name, readFileSync(path)]])),
  );
}
