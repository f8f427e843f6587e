# xmcbench on a CPU.
#   docker build -t xmcbench . && docker run --rm -v "$PWD/results:/work/results" xmcbench run quickstart
FROM python:3.11-slim

WORKDIR /src
COPY . .
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir -c constraints.txt '.[cpu,minilm,plots]' \
    && useradd --create-home --uid 1000 user \
    && mkdir /work \
    && chown user /work

USER 1000
WORKDIR /work
ENTRYPOINT ["xmcbench"]
CMD ["--help"]
